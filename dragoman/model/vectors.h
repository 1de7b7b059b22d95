// Vectors of 16 floats, read from and written to memory as float or bfloat16.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>
#include <omp.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));

struct bfloat16 {
  uint16_t bits;
};

constexpr int W = 16;  // elements of a vector

inline vec splat(float x) { return x - vec{}; }

inline vec load(const float* from) { return *reinterpret_cast<const vec*>(from); }
#ifdef __AVX512BF16__
inline vec load(const bfloat16* from) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return vec(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}
inline void store(bfloat16* to, vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(__m512(x))));
}
#else
inline vec load(const bfloat16* from) {
  words wide = __builtin_convertvector(*reinterpret_cast<const halves*>(from), words) << 16;
  return reinterpret_cast<vec&>(wide);
}
inline void store(bfloat16* to, vec x) {  // to nearest, ties to even
  words bits = reinterpret_cast<words&>(x);
  bits += 0x7fff + ((bits >> 16) & 1);
  *reinterpret_cast<halves*>(to) = __builtin_convertvector(bits >> 16, halves);
}
#endif
inline void store(float* to, vec x) { *reinterpret_cast<vec*>(to) = x; }
inline float scalar(float x) { return x; }
inline float scalar(bfloat16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float sum(vec x) {  // halves added to halves: fewer steps than lane after lane
  eight a, b;
  std::memcpy(&a, &x, 32);
  std::memcpy(&b, reinterpret_cast<char*>(&x) + 32, 32);
  a += b;
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}
inline float greatest(vec x) {
  eight a, b;
  std::memcpy(&a, &x, 32);
  std::memcpy(&b, reinterpret_cast<char*>(&x) + 32, 32);
  a = a > b ? a : b;
  auto best = [&](int i, int j) { return std::max(a[i], a[j]); };
  return std::max(std::max(best(0, 4), best(2, 6)), std::max(best(1, 5), best(3, 7)));
}
inline bool any(ints condition) {  // whether all bits of a lane are set, where a lane has all or none
#ifdef __AVX512F__
  const __m512i bits = reinterpret_cast<__m512i&>(condition);
  return _mm512_test_epi32_mask(bits, bits) != 0;
#else
  int32_t bits = 0;
  for (int i = 0; i < W; i++) bits |= condition[i];
  return bits != 0;
#endif
}
inline vec larger(vec a, vec b) { return a > b ? a : b; }
inline vec where(ints condition, vec x) {  // x where all bits are set, else 0
  words kept = reinterpret_cast<words&>(x) & reinterpret_cast<words&>(condition);
  return reinterpret_cast<vec&>(kept);
}

// e^x to about 1 unit in the last place, up to e^88; 0 below e^-60. Products of such small numbers
// with gradients would be denormal, which processors are slow at.
inline vec exponential(vec x) {
  ints counts = ~(x < -60.0f);  // NaN counts, and stays NaN
  vec shifted = x * 1.44269504f + 12582912.0f;  // round(x / ln 2) in the low bits
  vec n = shifted - 12582912.0f;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  ints bits = reinterpret_cast<ints&>(p) + (reinterpret_cast<ints&>(shifted) << 23);
  return where(counts, reinterpret_cast<vec&>(bits));
}

#ifdef __AVX512F__
// 16 rows of 16 elements of 4 bytes -> their columns.
inline void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int j = 0; j < 4; j++) {  // four rows' columns 4 l + j lie in lane l of a vector
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
  }
  for (int j = 0; j < 8; j++) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
  }
}
#endif

inline int padded(int n) { return (n + W - 1) / W * W; }

// Memory of a thread that lives as long as it does.
float* scratch(size_t floats) {
  static thread_local std::vector<float> memory;
  if (memory.size() < floats) memory.resize(floats);
  return memory.data();
}

}  // namespace
