PYTHON ?= python3
TARGET ?= de
BIN := .venv/bin
READY := .venv/.ready
SITE_READY := .venv/.site-ready

.DEFAULT_GOAL := help
.PHONY: help demo test docs lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Train, measure and try a model on real text (TARGET=zh-Hans, fr, ...: another language)
	$(BIN)/dragoman demo --target $(TARGET)

test: lint ## Lint, types and the whole test suite
	$(BIN)/python -m pytest -q -m "not slow"
	$(BIN)/python -m pytest -q -m slow

lint: $(READY) ## Formatting, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict dragoman

docs: $(SITE_READY) ## Write docs/cli.md and docs/settings.md anew, and the documentation as a site (site/)
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_settings.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html, or serve it: $(BIN)/python -m http.server -d site"

clean: ## Remove the environment and every cache of a tool, but no model and no download
	rm -rf .venv build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find dragoman tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an installation cut short is taken up again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "Installing Dragoman and what it needs into .venv (some minutes the first time) ..."
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(SITE_READY): $(READY)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
