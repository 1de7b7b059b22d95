// What both the functions of kernels.cpp and those of products.cpp do with vectors and rows.

#pragma once

#include "vectors.h"

namespace {

// Random words of a position: a multiplicative hash whose constants depend on the seed. Half a word
// decides about an element, so that the rate is rounded to a multiple of 1/65536.
struct Chance {
  uint32_t offset, factor, threshold;
  float scale;
  Chance(uint64_t seed, float rate)
      : offset(uint32_t(seed)), factor((0x7feb352dU ^ (uint32_t(seed >> 32) << 1)) | 1U),
        threshold(uint32_t(std::min(std::lround(rate * 65536.0), 65535L))),
        scale(65536.0f / float(65536 - threshold)) {}
  bool drops() const { return threshold > 0; }
  template <class U>
  U mix(U x) const {
    x = x * 0x9e3779b1U + offset;
    x ^= x >> 16;
    x *= factor;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
  }
  words draw(uint32_t position) const {
    return mix(words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + position);
  }
  // x * scale where half a random word, drawn, says keep; else 0.
  vec keep(vec x, words drawn) const {
    return where(reinterpret_cast<const ints&>((const words&)(drawn >= threshold)), x * scale);
  }
};

// A row normalized by its statistics: the mean and the inverse of the deviation.
template <class T>
inline void rescale(int width, const T* row, const float* weight, const float* bias,
                    const float* statistics, T* output) {
  for (int k = 0; k < width; k += W)
    store(output + k, (load(row + k) - statistics[0]) * statistics[1] * load(weight + k) + load(bias + k));
}

// The same, and finds the statistics.
template <class T>
inline void normalize(int width, float epsilon, const T* row, const float* weight, const float* bias,
                      T* output, float* statistics) {
  vec total = {}, squares = {};
  for (int k = 0; k < width; k += W) total += load(row + k);
  const float mean = sum(total) / width;
  for (int k = 0; k < width; k += W) {
    vec centered = load(row + k) - mean;
    squares += centered * centered;
  }
  const float inverse = 1.0f / std::sqrt(sum(squares) / width + epsilon);
  statistics[0] = mean, statistics[1] = inverse;
  rescale(width, row, weight, bias, statistics, output);
}

// The gradient of a row from that of its normalized one, plus `around` where there is some. To
// `sums`, (2, width), it adds the gradients of weight and bias.
template <class T, class G>
inline void normalize_backward(int width, const T* row, const float* weight, const float* statistics,
                               const G* gradient, const T* around, T* result, float* sums) {
  const float mean = statistics[0], inverse = statistics[1];
  vec plain = {}, along = {};
  for (int k = 0; k < width; k += W) {
    vec g = load(gradient + k), hat = (load(row + k) - mean) * inverse, weighted = g * load(weight + k);
    plain += weighted;
    along += weighted * hat;
    store(sums + k, load(sums + k) + g * hat);
    store(sums + width + k, load(sums + width + k) + g);
  }
  const float first = sum(plain) / width, second = sum(along) / width;
  for (int k = 0; k < width; k += W) {
    vec hat = (load(row + k) - mean) * inverse, weighted = load(gradient + k) * load(weight + k);
    vec change = (weighted - first - hat * second) * inverse;
    store(result + k, around ? load(around + k) + change : change);
  }
}

}  // namespace
