// What the runtime is asked for: one launch.
#ifndef CUDA_EMULATION_ORDER_H
#define CUDA_EMULATION_ORDER_H

namespace ck_emulation {

struct Order {
  void** pointers;  // operands, results
  unsigned long long seed;
  long long stack_bytes;
  char* report;
  long long report_bytes;
  int units, resident, cluster;
  unsigned error;  // result: the error word
};

// 0, or 1 with the reason in order->report.
extern "C" int ck_emulation_launch(Order* order);

}  // namespace ck_emulation

#endif  // CUDA_EMULATION_ORDER_H
