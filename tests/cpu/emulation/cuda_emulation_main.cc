// A launch in a process of its own, for the sanitizers: reads a request, writes an answer (emulator.py).
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <vector>

#include "cuda_emulation_order.h"

// Request, in i64: units, resident, cluster, seed, stack bytes, arrays; each array's bytes; of each the
// number of the array whose memory it is (itself, but for donated ones); then the contents. Answer: status,
// error word, report, contents.
int main(int count, char** names) {
  FILE* request = count == 3 ? fopen(names[1], "rb") : nullptr;
  FILE* answer = count == 3 ? fopen(names[2], "wb") : nullptr;
  if (!request || !answer) return 2;
  long long head[6];
  if (fread(head, sizeof head, 1, request) != 1) return 2;
  size_t arrays = size_t(head[5]);
  std::vector<long long> bytes(arrays), same(arrays);
  if (fread(bytes.data(), 8, arrays, request) != arrays) return 2;
  if (fread(same.data(), 8, arrays, request) != arrays) return 2;
  std::vector<void*> pointers(arrays);
  for (size_t i = 0; i < arrays; ++i) {
    if (posix_memalign(&pointers[i], 256, size_t(bytes[i] ? bytes[i] : 1))) return 2;
    if (fread(pointers[i], 1, size_t(bytes[i]), request) != size_t(bytes[i])) return 2;
    pointers[i] = pointers[size_t(same[i])];
  }
  static char report[1 << 16];
  ck_emulation::Order order = {pointers.data(), (unsigned long long)head[3], head[4], report, sizeof report,
                               int(head[0]),    int(head[1]),                int(head[2]), 0};
  int status = ck_emulation::ck_emulation_launch(&order);
  fwrite(&status, 4, 1, answer);
  fwrite(&order.error, 4, 1, answer);
  fwrite(report, sizeof report, 1, answer);
  for (size_t i = 0; i < arrays; ++i) fwrite(pointers[i], 1, size_t(bytes[i]), answer);
  fclose(answer);
  if (status) _exit(0);
  return 0;
}
