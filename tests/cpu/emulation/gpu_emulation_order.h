// What the runtime is asked for: one launch.
#ifndef GPU_EMULATION_ORDER_H
#define GPU_EMULATION_ORDER_H

namespace ck_emulation {

struct Order {
  void** pointers;  // operands, results
  const long long* sizes;  // the launch parameters
  void* workspace;         // null: one of the emulation
  long long shared_bytes;  // of that, if they follow from launch parameters, else 0
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

#endif  // GPU_EMULATION_ORDER_H
