// Clocks, sleep, and threads of the runtime's own.
#ifndef COCKTAIL_RUNTIME_THREADS_H
#define COCKTAIL_RUNTIME_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "cocktail_units.h"
#include "runtime_cores.h"

namespace {

u64 Nanoseconds(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  if (clock_gettime(clock, &now) != 0) return 0;
  return u64(now.tv_sec) * 1000000000u + u64(now.tv_nsec);
}

void Sleep(u64 nanoseconds) {
  timespec pause = {time_t(nanoseconds / 1000000000u), long(nanoseconds % 1000000000u)};
  nanosleep(&pause, nullptr);
}

// Starts a detached thread on some cores (nullptr: on any). It blocks signals, which are for the user's
// threads, except faults, so that fault handlers work. False if the system cannot start one.
bool StartThread(pthread_t* thread, void* (*main)(void*), void* argument, const CoreSet* cores) {
  const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int fault : faults) sigdelset(&blocked, fault);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (cores != nullptr) {
    auto* words = reinterpret_cast<const cpu_set_t*>(cores->words);
    pthread_attr_setaffinity_np(&attributes, cores->bytes, words);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int problem = pthread_create(thread, &attributes, main, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return problem == 0;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_THREADS_H
