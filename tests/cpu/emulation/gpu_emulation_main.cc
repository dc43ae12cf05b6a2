// A launch in a process of its own, for the sanitizers: reads a request, writes an answer (emulator.py).
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "gpu_emulation_order.h"

// Request, in i64: units, resident, cluster, seed, stack bytes, shared bytes, sizes, arrays; each size; each
// array's bytes; of each the number of the array whose memory it is (itself, but for donated ones); then the
// contents. Answer: status,
// error word, report, contents.
int main(int count, char** names) {
  FILE* request = count == 3 ? fopen(names[1], "rb") : nullptr;
  FILE* answer = count == 3 ? fopen(names[2], "wb") : nullptr;
  if (!request || !answer) return 2;
  long long head[8];
  if (fread(head, sizeof head, 1, request) != 1) return 2;
  size_t arrays = size_t(head[7]), count_of_sizes = size_t(head[6]);
  std::vector<long long> sizes(count_of_sizes), bytes(arrays), same(arrays);
  if (fread(sizes.data(), 8, sizes.size(), request) != sizes.size()) return 2;
  if (fread(bytes.data(), 8, arrays, request) != arrays) return 2;
  if (fread(same.data(), 8, arrays, request) != arrays) return 2;
  std::vector<void*> pointers(arrays);
  for (size_t i = 0; i < arrays; ++i) {
    if (posix_memalign(&pointers[i], 256, size_t(bytes[i] ? bytes[i] : 1))) return 2;
    if (fread(pointers[i], 1, size_t(bytes[i]), request) != size_t(bytes[i])) return 2;
    pointers[i] = pointers[size_t(same[i])];
  }
  static char report[1 << 16];
  ck_emulation::Order order = {};
  order.pointers = pointers.data();
  order.sizes = sizes.data();
  order.units = int(head[0]);
  order.resident = int(head[1]);
  order.cluster = int(head[2]);
  order.seed = (unsigned long long)head[3];
  order.stack_bytes = head[4];
  order.shared_bytes = head[5];
  order.report = report;
  order.report_bytes = sizeof report;
  int status = ck_emulation::ck_emulation_launch(&order);
  fwrite(&status, 4, 1, answer);
  fwrite(&order.error, 4, 1, answer);
  fwrite(report, sizeof report, 1, answer);
  for (size_t i = 0; i < arrays; ++i) fwrite(pointers[i], 1, size_t(bytes[i]), answer);
  fclose(answer);
  if (status) _exit(0);
  return 0;
}
