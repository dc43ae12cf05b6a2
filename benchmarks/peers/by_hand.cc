// The loops of scalar.py as one writes them in C++. Arrays are dense; `found` is the result.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

extern "C" {

void collatz(const int32_t* numbers, int64_t count, int32_t* found) {
#pragma omp parallel for schedule(static, 256)
  for (int64_t at = 0; at < count; ++at) {
    int32_t n = numbers[at], length = 0;
    for (; n != 1; ++length) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    found[at] = length;
  }
}

void lorenz(const float* points, int64_t count, int64_t steps, float* found) {
#pragma omp parallel for simd schedule(static)
  for (int64_t at = 0; at < count; ++at) {
    float x = points[3 * at], y = points[3 * at + 1], z = points[3 * at + 2];
    for (int64_t step = 0; step < steps; ++step) {
      const float dx = 10.0f * (y - x), dy = x * (28.0f - z) - y, dz = x * y - (8.0f / 3.0f) * z;
      x += 0.01f * dx, y += 0.01f * dy, z += 0.01f * dz;
    }
    found[3 * at] = x, found[3 * at + 1] = y, found[3 * at + 2] = z;
  }
}

void levenshtein(const int32_t* a, int64_t m, const int32_t* b, int64_t n, int32_t* found) {
  std::vector<int32_t> row(n + 1);
  std::iota(row.begin(), row.end(), 0);
  for (int64_t i = 0; i < m; ++i) {
    int32_t corner = row[0], left = ++row[0];
    for (int64_t j = 0; j < n; ++j) {
      const int32_t over = row[j + 1], changed = corner + (a[i] != b[j]);
      left = std::min(std::min(left, over) + 1, changed);
      corner = over, row[j + 1] = left;
    }
  }
  *found = row[n];
}

void newton(float x, int64_t steps, float* found) {
  for (int64_t step = 0; step < steps; ++step) x -= 0.1f * (x * x * x - x - 2.0f) / (3.0f * x * x - 1.0f);
  *found = x;
}

// A state of n numbers, n <= 16, of which h observes one sum.
void kalman(const float* observed, int64_t steps, const float* f, const float* h, const float* q, float r,
            int64_t n, float* found) {
  float mean[16] = {}, cov[16][16] = {}, next[16], between[16][16], along[16], across[16];
  for (int64_t i = 0; i < n; ++i) cov[i][i] = 1;
  for (int64_t t = 0; t < steps; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      next[i] = 0;
      for (int64_t j = 0; j < n; ++j) next[i] += f[i * n + j] * mean[j], between[i][j] = 0;
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t j = 0; j < n; ++j) between[i][j] += f[i * n + k] * cov[k][j];
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = q[i * n + j];
        for (int64_t k = 0; k < n; ++k) sum += between[i][k] * f[j * n + k];
        cov[i][j] = sum;
      }
    }
    float variance = r, expected = 0;
    for (int64_t i = 0; i < n; ++i) {
      along[i] = across[i] = 0;
      for (int64_t j = 0; j < n; ++j) along[i] += cov[i][j] * h[j], across[i] += h[j] * cov[j][i];
      variance += h[i] * along[i], expected += h[i] * next[i];
    }
    const float gap = (observed[t] - expected) / variance;
    for (int64_t i = 0; i < n; ++i) {
      found[t * n + i] = mean[i] = next[i] + along[i] * gap;
      for (int64_t j = 0; j < n; ++j) cov[i][j] -= along[i] * across[j] / variance;
    }
  }
}

void metropolis(const float* start, int64_t n, const float* moves, const float* draws, int64_t steps,
                float* found) {
  std::vector<float> x(start, start + n), proposed(n);
  const auto energy = [n](const std::vector<float>& x) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += 0.5f * x[i] * x[i] + 0.1f * std::cos(3.0f * x[i]);
    return sum;
  };
  float old = energy(x);
  for (int64_t i = 0; i < n; ++i) found[i] = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < n; ++i) proposed[i] = x[i] + moves[step * n + i];
    const float now = energy(proposed);
    if (std::log(draws[step]) < old - now) std::swap(x, proposed), old = now;
    for (int64_t i = 0; i < n; ++i) found[i] += x[i];
  }
  for (int64_t i = 0; i < n; ++i) found[i] /= float(steps);
}

void logistic(float x, const float* rates, int64_t steps, float* found) {
  for (int64_t step = 0; step < steps; ++step) found[step] = x = rates[step] * x * (1.0f - x);
}

void divisors(const int32_t* a, const int32_t* b, int64_t pairs, int32_t* found) {
  int32_t sum = 0;
  for (int64_t at = 0; at < pairs; ++at) {
    int32_t x = a[at], y = b[at];
    while (y != 0) x = std::exchange(y, x % y);
    sum += x;
  }
  *found = sum;
}

void walk(uint32_t state, int64_t steps, float* found) {
  float x = 0, y = 0;
  for (int64_t step = 0; step < steps; ++step) {
    state = 1664525u * state + 1013904223u;
    const float length = float(state >> 8) * 0x1p-24f;
    switch (state >> 30) {
      case 0: x += length; break;
      case 1: x -= length; break;
      case 2: y += length * x; break;
      default: y -= std::sqrt(length);
    }
  }
  found[0] = x, found[1] = y;
}

void pendulum(float angle, float speed, float damping, int64_t steps, float* found) {
  for (int64_t step = 0; step < steps; ++step) {
    speed += 0.01f * (-std::sin(angle) - damping * speed * std::exp(-speed * speed));
    angle += 0.01f * speed;
  }
  found[0] = angle, found[1] = speed;
}

}  // extern "C"
