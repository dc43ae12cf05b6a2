// The option errors="log": a line on stderr when a program begins, and one when it ends. If a program hangs
// or kills the process, the last line names it.
#ifndef COCKTAIL_RUNTIME_LOG_H
#define COCKTAIL_RUNTIME_LOG_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

namespace {

int64_t logged_calls = 0;  // begun so far in this process

// A call that tells of itself while it lives. No label: nothing is written.
class Logged {
 public:
  Logged(const char* label, int label_size) : label_(label), label_size_(label_size) {
    if (label_ == nullptr) return;
    number_ = __atomic_add_fetch(&logged_calls, 1, __ATOMIC_RELAXED);
    start_ = Now();
    Write("begins", "");
  }
  ~Logged() {
    if (label_ == nullptr) return;
    char time[64];
    snprintf(time, sizeof(time), " after %.3f ms", double(Now() - start_) / 1e6);
    Write(failed ? "fails" : "ends", time);
  }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;

  bool failed = true;  // until the call says otherwise

 private:
  // One write, past all buffers: lines of several threads do not mix, and none is lost if the process dies.
  void Write(const char* what, const char* time) const {
    char line[320];
    int size = snprintf(line, sizeof(line), "jax_cocktail: call %lld: %.*s %s%s\n",
                        static_cast<long long>(number_), label_size_ < 200 ? label_size_ : 200, label_, what,
                        time);
    if (size > 0 && write(STDERR_FILENO, line, size_t(size)) < 0) return;
  }
  static int64_t Now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
  }

  const char* label_;
  int label_size_;
  int64_t number_ = 0, start_ = 0;
};

}  // namespace

#endif  // COCKTAIL_RUNTIME_LOG_H
