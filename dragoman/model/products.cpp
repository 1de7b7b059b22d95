// Linear maps of packed rows in bfloat16 with what stands around them, on a processor that has
// matrix units (Intel AMX): one call does a map's forward or its whole backward pass.
//
// Shapes: R rows, K inputs, N outputs of the map; all are multiples of 32. Results come in blocks of
// 32 x 32, which are in the units (four tiles) until their sum over all inputs is complete, and in
// the nearest cache while the rest is done to them. "Packed" is a matrix of D rows cut into panels
// of 32 columns, each as tiles of 32 x 16 whose pairs of rows are interleaved, as the units read it.

#include "rows.h"

// y = residual + dropout(relu(normalized(x) W^T + b)), every part but the product at choice.
struct Linear {
  int64_t rows, inputs, outputs;
  const bfloat16* x;                      // (R, K)
  const float *norm_weight, *norm_bias;   // (K), or null: x is not normalized
  float* statistics;                      // (R, 2)
  const float *weight, *bias;             // (N, K); (N) or null
  const bfloat16* residual;               // (R, N) or null
  bfloat16* y;                            // (R, N)
  float epsilon, rate;
  uint64_t seed;
  int32_t relu;
  // Backward: the gradient by y, and by x of what goes around this map, (R, K) or null.
  const bfloat16 *gradient, *around;
  bfloat16* x_gradient;                   // (R, K)
  float *weight_gradient, *bias_gradient; // (N, K), (N)
  float* norm_gradient;                   // (2, K)
};

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int B = 32, TILE = 512;  // a block's rows and columns; elements of a tile

// The units of a thread, set up for tiles of 16 rows of 64 bytes.
struct Units {
  Units() {
    alignas(64) uint8_t setup[64] = {1};
    for (int tile = 0; tile < 8; tile++) setup[16 + 2 * tile] = 64, setup[48 + tile] = 16;
    _tile_loadconfig(setup);
  }
  ~Units() { _tile_release(); }
};

// Memory of the calling thread for packed operands, aligned as tiles are.
template <int NUMBER>
bfloat16* packing(size_t elements) {
  static thread_local std::vector<bfloat16> memory;
  if (memory.size() < elements + 32) memory.resize(elements + 32);
  return reinterpret_cast<bfloat16*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

// Elements of two rows, interleaved.
inline __m512i pairs(const bfloat16* even, const bfloat16* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
inline __m512i pairs(const float* even, const float* odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even)));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// 32 columns of a matrix (depth, ...), as the right factor, or transposed as the left one.
template <bool LEFT, class T>
void pack(int64_t depth, const T* from, int64_t stride, bfloat16* to) {
  for (int64_t d = 0; d < depth; d += B)
    for (int half = 0; half < 2; half++, to += TILE) {
      __m512i r[16];
      for (int i = 0; i < 16; i++) {
        const T* even = from + (d + 2 * i) * stride + 16 * half;
        r[i] = pairs(even, even + stride);
      }
      if (LEFT) transpose(r);
      for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, r[i]);
    }
}

// 32 rows (32, width) of a matrix of `rows`, from row `first` on, into all its panels.
template <bool LEFT>
void pack_rows(int64_t rows, int64_t first, int64_t width, const bfloat16* from, bfloat16* to) {
  for (int64_t n = 0; n < width; n += B) pack<LEFT>(B, from + n, width, to + n * rows + first * B);
}

// The transposed matrix, of which (32, depth) are given, as the right factor.
void pack_transposed(int64_t depth, const float* from, bfloat16* to) {
  for (int64_t d = 0; d < depth; d += B)
    for (int half = 0; half < 2; half++, to += TILE) {
      __m512i r[16];
      for (int i = 0; i < 16; i++) {
        const float* row = from + (16 * half + i) * depth + d;
        r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + 16), _mm512_loadu_ps(row));
      }
      transpose(r);
      for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, r[i]);
    }
}

// A block (32, 32) of a product. The left factor's tiles begin `step` elements apart, those of its
// lower 16 rows `lower` further on; its rows are `stride` bytes apart.
inline void product(int64_t depth, const bfloat16* left, int64_t stride, int64_t lower, int64_t step,
                    const bfloat16* right, float* result, int64_t columns) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < depth; d += B, left += step, right += 2 * TILE) {
    _tile_loadd(4, left, stride);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + lower, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, result, columns * 4);
  _tile_stored(1, result + 16, columns * 4);
  _tile_stored(2, result + 16 * columns, columns * 4);
  _tile_stored(3, result + 16 * columns + 16, columns * 4);
}

// Rows (32, depth) times all panels of a packed matrix; finish(column, its block) after each.
template <class Finish>
void multiply(int64_t depth, const bfloat16* rows, const bfloat16* packed, int64_t columns, Finish finish) {
  alignas(64) float block[B * B];
  for (int64_t column = 0; column < columns; column += B) {
    product(depth, rows, 2 * depth, 16 * depth, B, packed + column * depth, block, B);
    finish(column, block);
  }
}

// Two vectors of a row that share their random words, `pair` being their number among all.
inline void drop(const Chance& chance, int64_t pair, vec& one, vec& two) {
  if (!chance.drops()) return;
  const words drawn = chance.draw(uint32_t(pair * W));
  one = chance.keep(one, drawn >> 16), two = chance.keep(two, drawn & 0xffff);
}

void prefetch(const bfloat16* from, int64_t elements) {
  for (int64_t i = 0; i < elements; i += 32) _mm_prefetch(from + i, _MM_HINT_T0);
}

void forward(const Linear& s) {
  const Chance chance(s.seed, s.rate);
  const int64_t depth = s.inputs, columns = s.outputs;
  bfloat16* packed = packing<0>(depth * columns);
#pragma omp parallel
  {
    Units units;
    bfloat16* normed = packing<1>(B * depth);
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < columns; n += B) pack_transposed(depth, s.weight + n * depth, packed + n * depth);
#pragma omp for schedule(dynamic) nowait
    for (int64_t first = 0; first < s.rows; first += B) {
      const bfloat16* x = s.x + first * depth;
      for (int i = 0; s.norm_weight && i < B; i++)
        normalize(depth, s.epsilon, x + i * depth, s.norm_weight, s.norm_bias, normed + i * depth,
                  s.statistics + 2 * (first + i));
      if (s.residual) prefetch(s.residual + first * columns, B * columns);
      multiply(depth, s.norm_weight ? normed : x, packed, columns, [&](int64_t column, const float* block) {
        const vec bias[2] = {s.bias ? load(s.bias + column) : vec{}, s.bias ? load(s.bias + column + W) : vec{}};
        for (int i = 0; i < B; i++) {
          const int64_t place = (first + i) * columns + column;
          vec one = load(block + i * B) + bias[0], two = load(block + i * B + W) + bias[1];
          if (s.relu) one = one < 0.0f ? vec{} : one, two = two < 0.0f ? vec{} : two;  // NaN stays NaN
          drop(chance, place / B, one, two);
          if (s.residual) one += load(s.residual + place), two += load(s.residual + place + W);
          store(s.y + place, one), store(s.y + place + W, two);
        }
      });
    }
  }
}

// From the gradient by y of 32 rows that by the product; its sums over rows are added to `sums`.
void inner_gradient(const Linear& s, const Chance& chance, int64_t first, bfloat16* inner, float* sums) {
  for (int i = 0; i < B; i++, inner += s.outputs)
    for (int64_t column = 0; column < s.outputs; column += B) {
      const int64_t place = (first + i) * s.outputs + column;
      vec one = load(s.gradient + place), two = load(s.gradient + place + W);
      if (s.relu) {  // what was dropped or not open is zero in y
        one = where(load(s.y + place) > vec{}, one * chance.scale);
        two = where(load(s.y + place + W) > vec{}, two * chance.scale);
      } else {
        drop(chance, place / B, one, two);
      }
      store(inner + column, one), store(inner + column + W, two);
      store(sums + column, load(sums + column) + one);
      store(sums + column + W, load(sums + column + W) + two);
    }
}

// By x, of 32 rows, from that by the product.
void input_gradient(const Linear& s, int64_t first, const bfloat16* inner, const bfloat16* packed,
                    float* wide, float* norm_sums) {
  const int64_t width = s.inputs;
  multiply(s.outputs, inner, packed, width, [&](int64_t column, const float* block) {
    for (int i = 0; i < B; i++) {
      const int64_t place = (first + i) * width + column;
      for (int k = 0; k < B; k += W) {
        vec change = load(block + i * B + k);
        if (s.norm_weight) store(wide + i * width + column + k, change);
        else store(s.x_gradient + place + k, s.around ? load(s.around + place + k) + change : change);
      }
    }
  });
  for (int64_t r = first; s.norm_weight && r < first + B; r++)
    normalize_backward(width, s.x + r * width, s.norm_weight, s.statistics + 2 * r, wide + (r - first) * width,
                       s.around ? s.around + r * width : nullptr, s.x_gradient + r * width, norm_sums);
}

// 32 columns of the wider factor, as rows, times the narrower one: rows of the weight's gradient or,
// where x is the wider one, columns.
void weight_gradient(const Linear& s, int64_t n, const bfloat16* wide, const bfloat16* narrow) {
  const bool by_outputs = s.outputs >= s.inputs;
  const int64_t columns = std::min(s.inputs, s.outputs);
  for (int64_t k = 0; k < columns; k += B) {
    alignas(64) float block[B * B];
    float* result = by_outputs ? s.weight_gradient + n * columns + k : block;
    product(s.rows, wide, 64, TILE, 2 * TILE, narrow + k * s.rows, result, by_outputs ? columns : B);
    for (int part = 0; !by_outputs && part < 4; part++) {
      __m512i r[16];
      const int row = part / 2 * 16, column = part % 2 * 16;
      for (int i = 0; i < 16; i++) r[i] = _mm512_load_si512(block + (row + i) * B + column);
      transpose(r);
      for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(s.weight_gradient + (k + column + i) * s.inputs + n + row, r[i]);
    }
  }
}

void backward(const Linear& s) {
  const Chance chance(s.seed, s.rate);
  const int64_t depth = s.outputs, columns = s.inputs, size = depth + 2 * columns;
  const bool as_is = !s.relu && !s.bias && !chance.drops(), by_outputs = depth >= columns;
  const int64_t blocks = s.rows / B;
  bfloat16* packed = packing<0>(depth * columns + s.rows * (depth + columns) + 2 * blocks * size);
  bfloat16 *factor = packed + depth * columns, *other = factor + s.rows * depth;
  // Sums of each block, not of each thread: they do not depend on who computed what.
  float* sums = reinterpret_cast<float*>(other + s.rows * columns);
#pragma omp parallel
  {
    Units units;
    bfloat16 *inner = packing<1>(B * (depth + 3 * columns)), *normed = inner + B * depth;
    float* wide = reinterpret_cast<float*>(normed + B * columns);
#pragma omp for schedule(dynamic)
    for (int64_t k = 0; k < columns; k += B) pack<false>(depth, s.weight + k, columns, packed + k * depth);
#pragma omp for schedule(dynamic)
    for (int64_t first = 0; first < s.rows; first += B) {
      float* own = sums + first / B * size;
      std::fill(own, own + size, 0.0f);
      const bfloat16 *gradient = as_is ? s.gradient + first * depth : inner, *x = s.x + first * columns;
      if (!as_is) inner_gradient(s, chance, first, inner, own);
      for (int i = 0; s.norm_weight && i < B; i++)
        rescale(columns, x + i * columns, s.norm_weight, s.norm_bias, s.statistics + 2 * (first + i), normed + i * columns);
      if (s.norm_weight) x = normed;
      if (by_outputs) pack_rows<true>(s.rows, first, depth, gradient, factor), pack_rows<false>(s.rows, first, columns, x, other);
      else pack_rows<false>(s.rows, first, depth, gradient, factor), pack_rows<true>(s.rows, first, columns, x, other);
      input_gradient(s, first, gradient, packed, wide, own + depth);
    }
#pragma omp for schedule(dynamic) nowait
    for (int64_t n = 0; n < (s.weight_gradient ? std::max(depth, columns) : 0); n += B)
      weight_gradient(s, n, (by_outputs ? factor : other) + n * s.rows, by_outputs ? other : factor);
  }
  for (int64_t block = 1; block < blocks; block++)
    for (int64_t i = 0; i < size; i++) sums[i] += sums[block * size + i];
  if (s.bias) std::copy(sums, sums + depth, s.bias_gradient);
  if (s.norm_weight) std::copy(sums + depth, sums + size, s.norm_gradient);
}

}  // namespace

extern "C" {
void linear_forward(const Linear* s) { forward(*s); }
void linear_backward(const Linear* s) { backward(*s); }
// Whether the system lets this process use the units.
int matrix_units() { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0; }
}
#else
extern "C" {
void linear_forward(const Linear*) {}
void linear_backward(const Linear*) {}
int matrix_units() { return 0; }
}
#endif
