// Two rows of benchmarks/gpu/ensembles.py as one would write them by hand: a thread for each element, with
// its state in registers. ROW: which one; COUNT: elements; THREADS: of a block. Warps take runs of elements,
// as ours do.
struct Launch {
  void* pointers[4];  // operand, result, workspace, error word
};

#if ROW == 0
__device__ void element(const void* operand, void* result, int i) {
  int n = static_cast<const int*>(operand)[i], steps = 0;
  while (n > 1) {
    n = (n & 1) == 0 ? n >> 1 : 3 * n + 1;
    ++steps;
  }
  static_cast<int*>(result)[i] = steps;
}
#else
struct State {
  float x, y, z;
};

__device__ State slope(State s) {
  return {10.0f * (s.y - s.x), s.x * (28.0f - s.z) - s.y, s.x * s.y - 8.0f / 3.0f * s.z};
}

__device__ State moved(State s, float h, State d) { return {s.x + h * d.x, s.y + h * d.y, s.z + h * d.z}; }

__device__ float mean(float a, float b, float c, float d) { return a + 2 * b + 2 * c + d; }

__device__ void element(const void* operand, void* result, int i) {
  const float* from = static_cast<const float*>(operand) + 3 * i;
  float* to = static_cast<float*>(result) + 3 * i;
  const float h = 0.01f;
  State s = {from[0], from[1], from[2]};
  for (int step = 0; step < 500; ++step) {
    const State a = slope(s), b = slope(moved(s, h / 2, a));
    const State c = slope(moved(s, h / 2, b)), d = slope(moved(s, h, c));
    const State all = {mean(a.x, b.x, c.x, d.x), mean(a.y, b.y, c.y, d.y), mean(a.z, b.z, c.z, d.z)};
    s = moved(s, h / 6, all);
  }
  to[0] = s.x;
  to[1] = s.y;
  to[2] = s.z;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) ck_resident(Launch launch) {
  const int blocks = gridDim.x, warp = threadIdx.x / 32;
  for (int i = (warp * blocks + blockIdx.x) * 32 + threadIdx.x % 32; i < COUNT; i += blocks * THREADS)
    element(launch.pointers[0], launch.pointers[1], i);
}
