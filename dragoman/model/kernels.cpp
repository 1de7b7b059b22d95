// What surrounds the matrix products of a training step on a CPU, each in one pass over memory.
//
// Plain C interface, called through ctypes by kernels.py, which compiles this file once a machine
// and holds every function against PyTorch. Shapes: R rows, D features, H heads, K head width,
// V vocabulary. T is bfloat16 or float; all arithmetic is in float32. Widths are multiples of 16.

#include "rows.h"

namespace {

// Every vector of n elements: change(index, vector's own half of its random words).
template <class Change>
void each_dropped(int64_t n, const Chance& chance, Change change) {
  const int64_t pairs = (n + 2 * W - 1) / (2 * W);
#pragma omp parallel for schedule(static)
  for (int64_t pair = 0; pair < pairs; pair++) {
    words drawn = chance.draw(uint32_t(pair * W));
    change(pair * 2 * W, drawn >> 16);
    if (pair * 2 * W + W < n) change(pair * 2 * W + W, drawn & 0xffff);
  }
}

// C (M, N) = A (M, depth) B (depth, N); A[i, k] at i * row + k * column; N a multiple of 16.
template <int M, int N>
inline void product_tile(int depth, const float* a, int row, int column, const float* b, int ldb,
                         float* c, int ldc) {
  vec total[M][N] = {};
  for (int k = 0; k < depth; k++) {
    vec right[N];
    for (int j = 0; j < N; j++) right[j] = load(b + k * ldb + j * W);
    for (int i = 0; i < M; i++) {
      float left = a[i * row + k * column];
      for (int j = 0; j < N; j++) total[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) store(c + i * ldc + j * W, total[i][j]);
}

template <int N>
inline void product_columns(int m, int depth, const float* a, int row, int column, const float* b,
                            int ldb, float* c, int ldc) {
  int i = 0;
  for (; i + 8 <= m; i += 8) product_tile<8, N>(depth, a + i * row, row, column, b, ldb, c + i * ldc, ldc);
  a += i * row, c += i * ldc;
  switch (m - i) {
    case 7: return product_tile<7, N>(depth, a, row, column, b, ldb, c, ldc);
    case 6: return product_tile<6, N>(depth, a, row, column, b, ldb, c, ldc);
    case 5: return product_tile<5, N>(depth, a, row, column, b, ldb, c, ldc);
    case 4: return product_tile<4, N>(depth, a, row, column, b, ldb, c, ldc);
    case 3: return product_tile<3, N>(depth, a, row, column, b, ldb, c, ldc);
    case 2: return product_tile<2, N>(depth, a, row, column, b, ldb, c, ldc);
    case 1: return product_tile<1, N>(depth, a, row, column, b, ldb, c, ldc);
  }
}

void product(int m, int n, int depth, const float* a, int row, int column, const float* b, int ldb,
             float* c, int ldc) {
  int j = 0;
  for (; j + 2 * W <= n; j += 2 * W)
    product_columns<2>(m, depth, a, row, column, b + j, ldb, c + j, ldc);
  if (j < n) product_columns<1>(m, depth, a, row, column, b + j, ldb, c + j, ldc);
}

template <class T>
void rows_to_float(const T* from, int64_t stride, int rows, int width, float scale, float* to) {
  for (int i = 0; i < rows; i++)
    for (int k = 0; k < width; k += W) store(to + i * width + k, load(from + i * stride + k) * scale);
}

template <class T>
void float_to_rows(const float* from, int rows, int width, float scale, T* to, int64_t stride) {
  for (int i = 0; i < rows; i++)
    for (int k = 0; k < width; k += W) store(to + i * stride + k, load(from + i * width + k) * scale);
}

// rows (rows, width) -> (width, columns), zero where there is no row.
template <class T>
void transposed(const T* from, int64_t stride, int rows, int width, int columns, float* to) {
#ifdef __AVX512F__
  for (int i = 0; i < columns; i += W)
    for (int k = 0; k < width; k += W) {
      __m512i block[W];
      for (int j = 0; j < W; j++) {
        const vec row = i + j < rows ? load(from + (i + j) * stride + k) : vec{};
        block[j] = reinterpret_cast<const __m512i&>(row);
      }
      transpose(block);
      for (int j = 0; j < W; j++) _mm512_storeu_si512(to + (k + j) * columns + i, block[j]);
    }
#else
  for (int k = 0; k < width; k++) {
    for (int i = 0; i < rows; i++) to[k * columns + i] = scalar(from[i * stride + k]);
    for (int i = rows; i < columns; i++) to[k * columns + i] = 0;
  }
#endif
}

// What of a batch's rows each sentence holds, and how its heads lie in memory.
struct Sentences {
  int count, heads, width, causal;
  const int64_t *query_start, *key_start;  // (count + 1)
  int queries(int b) const { return int(query_start[b + 1] - query_start[b]); }
  int keys(int b) const { return int(key_start[b + 1] - key_start[b]); }
  int seen(int i, int m) const { return causal ? std::min(i + 1, m) : m; }
  uint32_t position(int b, int h, int i) const {
    return uint32_t((query_start[b] + i) * heads + h) * 2654435769U;
  }
};

template <class T>
struct Operands {
  const T *query, *key, *value;
  int64_t query_stride, key_stride;
};

template <class T>
void attention_forward(const Sentences& s, const Operands<T>& x, const Chance& chance,
                       T* output, float* log_sums) {
  const float scale = 1.0f / std::sqrt(float(s.width));
  const int width = s.width;
#pragma omp parallel for schedule(dynamic, 4)
  for (int item = 0; item < s.count * s.heads; item++) {
    const int b = item / s.heads, h = item % s.heads, n = s.queries(b), m = s.keys(b), mp = padded(m);
    float* query = scratch(size_t(2 * n + m + mp) * width + size_t(n) * mp);
    float *key = query + n * width, *value = key + mp * width, *joined = value + m * width,
          *weights = joined + n * width;
    const int64_t first_key = s.key_start[b] * x.key_stride + h * width;
    rows_to_float(x.query + s.query_start[b] * x.query_stride + h * width, x.query_stride, n, width, scale, query);
    transposed(x.key + first_key, x.key_stride, m, width, mp, key);
    rows_to_float(x.value + first_key, x.key_stride, m, width, 1.0f, value);
    product(n, mp, width, query, width, 1, key, mp, weights, mp);
    for (int i = 0; i < n; i++) {
      float* row = weights + i * mp;
      const int seen = s.seen(i, m);
      for (int j = seen; j < mp; j++) row[j] = -1e30f;
      vec best = splat(-1e30f), total = {};
      for (int j = 0; j < mp; j += W) best = larger(best, load(row + j));
      const float top = greatest(best);
      for (int j = 0; j < mp; j += W) {
        vec p = exponential(load(row + j) - top);
        total += p;
        store(row + j, p);
      }
      const float whole = sum(total), inverse = 1.0f / whole;
      log_sums[(s.query_start[b] + i) * s.heads + h] = top + std::log(whole);
      const uint32_t position = chance.mix(s.position(b, h, i));
      for (int j = 0; j < mp; j += W) {
        vec p = load(row + j) * inverse;
        store(row + j, chance.drops() ? chance.keep(p, chance.draw(position + j) >> 16) : p);
      }
    }
    product(n, width, m, weights, mp, 1, value, width, joined, width);
    float_to_rows(joined, n, width, 1.0f, output + (s.query_start[b] * s.heads + h) * width, int64_t(s.heads) * width);
  }
}

template <class T>
void attention_backward(const Sentences& s, const Operands<T>& x, const Chance& chance,
                        const float* log_sums, const T* gradient, T* query_gradient,
                        T* key_gradient, T* value_gradient) {
  const float scale = 1.0f / std::sqrt(float(s.width));
  const int width = s.width;
#pragma omp parallel for schedule(dynamic, 4)
  for (int item = 0; item < s.count * s.heads; item++) {
    const int b = item / s.heads, h = item % s.heads, n = s.queries(b), m = s.keys(b), mp = padded(m);
    float* query = scratch(size_t(3 * n + 3 * m + 2 * mp) * width + size_t(2 * n) * mp);
    float *key = query + n * width, *keys = key + mp * width, *values = keys + m * width,
          *outer = values + mp * width, *result = outer + n * width,
          *weights = result + std::max(n, m) * width, *inner = weights + n * mp;
    const int64_t first_query = s.query_start[b] * x.query_stride + h * width;
    const int64_t first_key = s.key_start[b] * x.key_stride + h * width;
    rows_to_float(x.query + first_query, x.query_stride, n, width, scale, query);
    rows_to_float(x.key + first_key, x.key_stride, m, width, 1.0f, keys);
    transposed(x.key + first_key, x.key_stride, m, width, mp, key);
    transposed(x.value + first_key, x.key_stride, m, width, mp, values);
    rows_to_float(gradient + (s.query_start[b] * s.heads + h) * width, int64_t(s.heads) * width, n, width, 1.0f, outer);
    product(n, mp, width, query, width, 1, key, mp, weights, mp);
    product(n, mp, width, outer, width, 1, values, mp, inner, mp);
    for (int i = 0; i < n; i++) {
      float *row = weights + i * mp, *change = inner + i * mp;
      const int seen = s.seen(i, m);
      for (int j = seen; j < mp; j++) row[j] = -1e30f;
      const float log_sum = log_sums[(s.query_start[b] + i) * s.heads + h];
      const uint32_t position = chance.mix(s.position(b, h, i));
      vec along = {};
      for (int j = 0; j < mp; j += W) {
        vec p = exponential(load(row + j) - log_sum), g = load(change + j);
        if (chance.drops()) g = chance.keep(g, chance.draw(position + j) >> 16);
        along += p * g;
        store(change + j, g);
        store(row + j, p);
      }
      const float mean = sum(along);
      for (int j = 0; j < mp; j += W) {
        vec p = load(row + j), g = load(change + j);
        store(change + j, p * (g - mean));
        if (chance.drops()) store(row + j, chance.keep(p, chance.draw(position + j) >> 16));
      }
    }
    product(m, width, n, weights, 1, mp, outer, width, result, width);
    float_to_rows(result, m, width, 1.0f, value_gradient + first_key, x.key_stride);
    product(n, width, m, inner, mp, 1, keys, width, result, width);
    float_to_rows(result, n, width, scale, query_gradient + first_query, x.query_stride);
    product(m, width, n, inner, 1, mp, query, width, result, width);
    float_to_rows(result, m, width, 1.0f, key_gradient + first_key, x.key_stride);
  }
}

template <class T>
void add_dropout(int64_t n, const T* x, const T* y, const Chance& chance, T* output) {
  each_dropped(n, chance, [=](int64_t i, words drawn) {
    vec kept = chance.keep(load(y + i), drawn);
    store(output + i, x ? load(x + i) + kept : kept);
  });
}

// max(0, x), then dropout; where the output is positive is all that the gradient needs.
template <class T>
void relu_dropout(int64_t n, const T* x, const Chance& chance, T* output) {
  each_dropped(n, chance, [=](int64_t i, words drawn) {
    vec open = load(x + i);
    open = open < 0.0f ? vec{} : open;  // NaN stays NaN
    store(output + i, chance.keep(open, drawn));
  });
}

template <class T>
void relu_dropout_backward(int64_t n, const T* output, const T* gradient, float scale, T* result) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; i += W) {
    ints open = load(output + i) > vec{};
    store(result + i, where(open, load(gradient + i) * scale));
  }
}

// 1 / (1 + e^-x); e^80 is as good as infinite, and more would overflow.
inline vec logistic(vec x) { return 1.0f / (exponential(-larger(x, splat(-80.0f))) + 1.0f); }

// SiLU(a) * b of rows [a, b], each of width elements.
template <class T>
void gate(int64_t rows, int width, const T* x, T* output) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = x + r * 2 * width;
    for (int k = 0; k < width; k += W) {
      vec a = load(row + k);
      store(output + r * width + k, a * logistic(a) * load(row + width + k));
    }
  }
}

template <class T>
void gate_backward(int64_t rows, int width, const T* x, const T* gradient, T* result) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = x + r * 2 * width;
    T* change = result + r * 2 * width;
    for (int k = 0; k < width; k += W) {
      vec a = load(row + k), b = load(row + width + k), g = load(gradient + r * width + k);
      vec open = logistic(a), silu = a * open;
      store(change + k, g * b * (open + silu * (1.0f - open)));
      store(change + width + k, g * silu);
    }
  }
}

template <class T>
void layer_norm(int64_t rows, int width, float epsilon, const T* x, const float* weight,
                const float* bias, T* output, float* statistics) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    normalize(width, epsilon, x + r * width, weight, bias, output + r * width, statistics + 2 * r);
  }
}

template <class T>
void layer_norm_backward(int64_t rows, int width, const T* x, const float* weight,
                         const float* statistics, const T* gradient, T* result,
                         float* weight_gradient, float* bias_gradient) {
  const int most = omp_get_max_threads();
  std::vector<float> partial(size_t(most) * 2 * width, 0.0f);
#pragma omp parallel
  {
    float* own = partial.data() + size_t(omp_get_thread_num()) * 2 * width;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      normalize_backward<T>(width, x + r * width, weight, statistics + 2 * r, gradient + r * width, nullptr,
                            result + r * width, own);
    }
  }
  for (int k = 0; k < width; k++) {
    weight_gradient[k] = bias_gradient[k] = 0;
    for (int t = 0; t < most; t++) {
      weight_gradient[k] += partial[size_t(t) * 2 * width + k];
      bias_gradient[k] += partial[size_t(t) * 2 * width + width + k];
    }
  }
}

// Softmax of logits (R, V) in place; the negative log-likelihood and the logit of each label.
template <class T>
void softmax(int64_t rows, int columns, T* logits, const int64_t* labels, float* nll, float* gold) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    T* row = logits + r * columns;
    float* powers = scratch(columns);
    vec best = load(row), total = {};
    for (int j = 0; j < columns; j += W) best = larger(best, load(row + j));
    const float top = greatest(best);
    gold[r] = scalar(row[labels[r]]);
    for (int j = 0; j < columns; j += W) {
      vec p = exponential(load(row + j) - top);
      total += p;
      store(powers + j, p);
    }
    const float whole = sum(total), inverse = 1.0f / whole;
    nll[r] = top + std::log(whole) - gold[r];
    for (int j = 0; j < columns; j += W) store(row + j, load(powers + j) * inverse);
  }
}

template <class T>
void less_a_row(int64_t rows, int width, const T* matrix, const float* row, float scale, float* result) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++)
    for (int k = 0; k < width; k += W)
      store(result + r * width + k, (load(matrix + r * width + k) - load(row + k)) * scale);
}

}  // namespace

#define EACH_TYPE(name, T)                                                                        \
  void attention_forward_##name(int count, int heads, int width, int causal, const int64_t* query_start, \
      const int64_t* key_start, const T* query, int64_t query_stride, const T* key, const T* value,  \
      int64_t key_stride, float rate, uint64_t seed, T* output, float* log_sums) {                 \
    attention_forward<T>({count, heads, width, causal, query_start, key_start},                    \
        {query, key, value, query_stride, key_stride}, Chance(seed, rate), output, log_sums); \
  }                                                                                               \
  void attention_backward_##name(int count, int heads, int width, int causal, const int64_t* query_start, \
      const int64_t* key_start, const T* query, int64_t query_stride, const T* key, const T* value,  \
      int64_t key_stride, float rate, uint64_t seed, const float* log_sums, const T* gradient,     \
      T* query_gradient, T* key_gradient, T* value_gradient) {                                     \
    attention_backward<T>({count, heads, width, causal, query_start, key_start},                   \
        {query, key, value, query_stride, key_stride}, Chance(seed, rate), log_sums,     \
        gradient, query_gradient, key_gradient, value_gradient);                                   \
  }                                                                                               \
  void add_dropout_##name(int64_t n, const T* x, const T* y, float rate, uint64_t seed, T* output) { \
    add_dropout<T>(n, x, y, Chance(seed, rate), output);                                           \
  }                                                                                               \
  void relu_dropout_##name(int64_t n, const T* x, float rate, uint64_t seed, T* output) {          \
    relu_dropout<T>(n, x, Chance(seed, rate), output);                                             \
  }                                                                                               \
  void relu_dropout_backward_##name(int64_t n, const T* output, const T* gradient, float rate, T* result) { \
    relu_dropout_backward<T>(n, output, gradient, Chance(0, rate).scale, result);                   \
  }                                                                                               \
  void gate_##name(int64_t rows, int width, const T* x, T* output) {                               \
    gate<T>(rows, width, x, output);                                                               \
  }                                                                                               \
  void gate_backward_##name(int64_t rows, int width, const T* x, const T* gradient, T* result) {   \
    gate_backward<T>(rows, width, x, gradient, result);                                            \
  }                                                                                               \
  void layer_norm_##name(int64_t rows, int width, float epsilon, const T* x, const float* weight,  \
      const float* bias, T* output, float* statistics) {                                           \
    layer_norm<T>(rows, width, epsilon, x, weight, bias, output, statistics);                      \
  }                                                                                               \
  void layer_norm_backward_##name(int64_t rows, int width, const T* x, const float* weight,        \
      const float* statistics, const T* gradient, T* result, float* weight_gradient,               \
      float* bias_gradient) {                                                                      \
    layer_norm_backward<T>(rows, width, x, weight, statistics, gradient, result, weight_gradient,  \
        bias_gradient);                                                                            \
  }                                                                                               \
  void softmax_##name(int64_t rows, int columns, T* logits, const int64_t* labels, float* nll, float* gold) { \
    softmax<T>(rows, columns, logits, labels, nll, gold);                                          \
  }                                                                                               \
  void less_a_row_##name(int64_t rows, int width, const T* matrix, const float* row, float scale, float* result) { \
    less_a_row<T>(rows, width, matrix, row, scale, result);                                        \
  }

extern "C" {
EACH_TYPE(float32, float)
EACH_TYPE(bfloat16, bfloat16)
}
