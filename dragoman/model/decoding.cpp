// What surrounds the matrix products of a decoding step on a CPU; see kernels.cpp for the rest.
//
// Shapes: R rows (the beams of a sentence are neighbors), H heads, K head width, V vocabulary.

#include "vectors.h"

namespace {

// A row's attention to keys of H * K elements each, whose values lie H * K on. PARTS vectors are a
// head's, or any number where PARTS is 0: then all is done in pieces of one vector.
template <int PARTS, class T>
void attend_row(int heads, int parts, int keys, const T* query, const T* const* key, T* output) {
  constexpr int PIECE = PARTS ? PARTS : 1;
  if (PARTS) parts = PARTS;
  const float scale = 1.0f / std::sqrt(float(parts * W));
  const int features = heads * parts * W, columns = padded(keys);
  float* weights = scratch(columns);
  for (int h = 0; h < heads; h++) {
    const int first = h * parts * W;
    for (int j = keys; j < columns; j++) weights[j] = -1e30f;
    for (int j = 0; j < keys; j++) {
      vec total = {};
      for (int i = 0; i < parts; i++) total += load(query + first + i * W) * load(key[j] + first + i * W);
      weights[j] = sum(total) * scale;
    }
    vec best = splat(-1e30f), whole = {};
    for (int j = 0; j < columns; j += W) best = larger(best, load(weights + j));
    const float top = greatest(best);
    for (int j = 0; j < columns; j += W) {
      vec p = exponential(load(weights + j) - top);
      whole += p;
      store(weights + j, p);
    }
    const float inverse = 1.0f / sum(whole);
    for (int piece = 0; piece < parts; piece += PIECE) {
      const int place = first + piece * W;
      vec joined[PIECE] = {};
      for (int j = 0; j < keys; j++)
        for (int i = 0; i < PIECE; i++)
          joined[i] += weights[j] * load(key[j] + features + place + i * W);
      for (int i = 0; i < PIECE; i++) store(output + place + i * W, joined[i] * inverse);
    }
  }
}

template <class T>
void attend_row(int heads, int width, const std::vector<const T*>& keys, const T* query, T* output) {
  auto attend = width == 64 ? attend_row<4, T> : width == 32 ? attend_row<2, T> : attend_row<0, T>;
  attend(heads, width / W, int(keys.size()), query, keys.data(), output);
}

// Rows attend to their own past. past[t] is step t's projection, rows of queries, keys and values;
// ancestors (R, steps) says which row of it continues as this one, the last step's own row last.
template <class T>
void attend_past(int rows, int steps, int heads, int width, const T* const* past,
                 const int32_t* ancestors, T* output) {
  const int64_t features = int64_t(heads) * width;
#pragma omp parallel for schedule(static)
  for (int r = 0; r < rows; r++) {
    static thread_local std::vector<const T*> keys;
    keys.resize(steps);
    for (int t = 0; t < steps; t++)
      keys[t] = past[t] + (ancestors[int64_t(r) * steps + t] * 3 + 1) * features;
    attend_row(heads, width, keys, keys.back() - features, output + r * features);
  }
}

// Rows attend to their sentence's memory, rows of keys and values from its start on.
template <class T>
void attend_memory(int rows, int beams, int heads, int width, const T* query, const T* memory,
                   const int64_t* starts, const int64_t* lengths, T* output) {
  const int64_t features = int64_t(heads) * width;
#pragma omp parallel for schedule(static)
  for (int r = 0; r < rows; r++) {
    static thread_local std::vector<const T*> keys;
    keys.resize(lengths[r / beams]);
    for (size_t j = 0; j < keys.size(); j++) keys[j] = memory + (starts[r / beams] + j) * 2 * features;
    attend_row(heads, width, keys, query + r * features, output + r * features);
  }
}

constexpr int BLOCK = 4 * W;

// The greatest of every lane.
template <class T>
vec greatest_of(const T* row, int columns) {
  vec best[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
  for (int j = 0; j < columns; j += BLOCK)
    for (int i = 0; i < 4; i++) best[i] = larger(best[i], load(row + j + i * W));
  return larger(larger(best[0], best[1]), larger(best[2], best[3]));
}

// log(sum(exp(x))) of every row (R, V); -inf for a row of nothing else.
template <class T>
void log_sums(int64_t rows, int columns, const T* logits, float* sums) {
  const int whole = columns / BLOCK * BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = logits + r * columns;
    float top = greatest(greatest_of(row, whole));
    for (int j = whole; j < columns; j++) top = std::max(top, scalar(row[j]));
    if (top == -INFINITY) {
      sums[r] = top;
      continue;
    }
    vec total[4] = {};
    for (int j = 0; j < whole; j += BLOCK)
      for (int i = 0; i < 4; i++) total[i] += exponential(load(row + j + i * W) - top);
    float rest = sum((total[0] + total[1]) + (total[2] + total[3]));
    for (int j = whole; j < columns; j++) rest += std::exp(scalar(row[j]) - top);
    sums[r] = top + std::log(rest);
  }
}

// The `count` largest of every row (R, V), largest first, of equal ones the first; count <= W.
template <class T>
void largest(int64_t rows, int columns, int count, const T* values, float* best, int64_t* places) {
  const int whole = columns / BLOCK * BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const T* row = values + r * columns;
    float* found = best + r * count;
    int64_t* where = places + r * count;
    int have = 0;
    auto offer = [&](float x, int place) {
      if (have == count && !(x > found[count - 1])) return;
      int i = have < count ? have++ : count - 1;
      for (; i > 0 && x > found[i - 1]; i--) found[i] = found[i - 1], where[i] = where[i - 1];
      found[i] = x, where[i] = place;
    };
    // What is below the count-th largest of the lanes' maxima is not among the largest.
    float ordered[W];
    store(ordered, greatest_of(row, whole));
    std::nth_element(ordered, ordered + count - 1, ordered + W, std::greater<float>());
    const float least = ordered[count - 1];
    for (int j = 0; j < whole; j += BLOCK) {
      vec top = larger(larger(load(row + j), load(row + j + W)),
                       larger(load(row + j + 2 * W), load(row + j + 3 * W)));
      if (any(top >= least))
        for (int i = j; i < j + BLOCK; i++)
          if (scalar(row[i]) >= least) offer(scalar(row[i]), i);
    }
    for (int j = whole; j < columns; j++) offer(scalar(row[j]), j);
    for (; have < count; have++) found[have] = -INFINITY, where[have] = 0;  // NaN is never offered
  }
}

}  // namespace

#define EACH_TYPE(name, T)                                                                         \
  void attend_past_##name(int rows, int steps, int heads, int width, const T* const* past,         \
      const int32_t* ancestors, T* output) {                                                       \
    attend_past<T>(rows, steps, heads, width, past, ancestors, output);                            \
  }                                                                                                \
  void attend_memory_##name(int rows, int beams, int heads, int width, const T* query,             \
      const T* memory, const int64_t* starts, const int64_t* lengths, T* output) {                 \
    attend_memory<T>(rows, beams, heads, width, query, memory, starts, lengths, output);           \
  }                                                                                                \
  void log_sums_##name(int64_t rows, int columns, const T* logits, float* sums) {                  \
    log_sums<T>(rows, columns, logits, sums);                                                      \
  }                                                                                                \
  void largest_##name(int64_t rows, int columns, int count, const T* values, float* best,          \
      int64_t* places) {                                                                           \
    largest<T>(rows, columns, count, values, best, places);                                        \
  }

extern "C" {
EACH_TYPE(float32, float)
EACH_TYPE(bfloat16, bfloat16)
}
