"""python -m dragoman"""

from dragoman.cli import main

main()
