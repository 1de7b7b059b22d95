// A step of Adam with decoupled weight decay over all weights of a model, after one pass for the
// norm of their gradients. Called through ctypes by kernels.py; float32 as in memory.

#include "vectors.h"

struct Weights {  // one tensor
  float *weight, *gradient, *mean, *square, *step;
  int64_t size;
  float decay;
};

struct Settings {
  double rate, beta1, beta2, epsilon, scale;  // the scale of the gradients
};

namespace {

template <class V>
inline V root(V x) {
  for (int i = 0; i < W; i++) x[i] = std::sqrt(x[i]);
  return x;
}
inline float root(float x) { return std::sqrt(x); }

}  // namespace

extern "C" {

double gradient_norm(int count, const Weights* all) {
  std::vector<double> totals(omp_get_max_threads());  // added in one order, whoever is first
#pragma omp parallel
  for (int n = 0; n < count; n++) {
    const float* gradient = all[n].gradient;
    const int64_t size = all[n].size, part = 1024;
#pragma omp for schedule(static) nowait
    for (int64_t first = 0; first < size; first += part) {
      const int64_t end = std::min(first + part, size);
      vec squares = {};
      int64_t i = first;
      for (; i + W <= end; i += W) squares += load(gradient + i) * load(gradient + i);
      double rest = sum(squares);
      for (; i < end; i++) rest += double(gradient[i]) * gradient[i];
      totals[omp_get_thread_num()] += rest;
    }
  }
  double total = 0;
  for (double part : totals) total += part;
  return std::sqrt(total);
}

// The gradients stay as they are. Counts the step of every tensor.
void adam_step(int count, const Weights* all, const Settings* settings) {
  const Settings s = *settings;
#pragma omp parallel
  for (int n = 0; n < count; n++) {
    const Weights w = all[n];
    const double step = double(*w.step) + 1;
    const float rate = s.rate / (1 - std::pow(s.beta1, step)), kept = 1 - s.rate * w.decay;
    const float correction = 1 / std::sqrt(1 - std::pow(s.beta2, step)), epsilon = s.epsilon;
    const float scale = s.scale, share1 = 1 - s.beta1, kept2 = s.beta2, share2 = 1 - s.beta2;
    auto change = [&](auto weight, auto gradient, auto& mean, auto& square) {
      gradient *= scale;
      mean += (gradient - mean) * share1;
      square = square * kept2 + gradient * gradient * share2;
      return weight * kept - rate * mean / (root(square) * correction + epsilon);
    };
    const int64_t whole = w.size / W * W;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < whole; i += W) {
      vec mean = load(w.mean + i), square = load(w.square + i);
      store(w.weight + i, change(load(w.weight + i), load(w.gradient + i), mean, square));
      store(w.mean + i, mean), store(w.square + i, square);
    }
#pragma omp single nowait
    for (int64_t i = whole; i < w.size; i++) w.weight[i] = change(w.weight[i], w.gradient[i], w.mean[i], w.square[i]);
  }
  for (int n = 0; n < count; n++) *all[n].step += 1;
}

}  // extern "C"
