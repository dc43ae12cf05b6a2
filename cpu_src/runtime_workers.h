// A worker: a thread that sleeps or watches for its next call, and what the kernel needs to place it well.
#ifndef COCKTAIL_RUNTIME_WORKERS_H
#define COCKTAIL_RUNTIME_WORKERS_H

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "runtime_float.h"
#include "runtime_threads.h"

namespace {

const u64 kIdleNanoseconds = 50000;  // a worker spins this long for its next call before it sleeps
// The longer time of a worker whose last call came within it: its program is called repeatedly, with other
// work in between. It yields its core at every look at the clock and sleeps once another thread has taken the
// core, because a woken thread gets a core sooner than one that waits. It then is shy (uses the shorter time)
// for some calls.
const u64 kBusyNanoseconds = 2000000;
const u64 kTakenNanoseconds = 20000;  // a yield that takes longer than that let another thread run
const u64 kShyCalls = 100;
// After a call that it was too late for, a worker watches its core for so long, past the first yields. If
// nobody takes the core, the worker was late because the machine is a virtual one, whose host was slow to run
// the core again, and not because another process needs it.
const u64 kProofNanoseconds = 2 * kIdleNanoseconds;

// What a worker does when it is called. `number`: of the worker in this call, from 1. Returns the program's
// code.
struct Call {
  int (*work)(Call* call, i64 number);
  bool fits;    // every unit has a core
  bool sleeps;  // the caller sleeps until the worker is done
};

const u32 kAsleep = 1;   // in the ticket: the worker must be woken
const u32 kPresent = 1;  // in the answer: the worker takes part

struct alignas(128) Worker {
  // Written by the caller, `ticket` last. It increases by two per call, and skips 0.
  u32 ticket;
  // The ticket while the worker is called; kPresent is added by the worker. 0: the caller went on without it.
  u32 answer;
  Call* call;
  i64 number;
  // Written by the worker; `done` last: the ticket of the call that is finished. On a line that the caller
  // may watch undisturbed.
  alignas(128) u32 done;
  int code;
  int core;  // where it ran last
  // Used by whoever holds the worker.
  alignas(128) Worker* next;
  u32 called;  // the last ticket
  bool slept;  // when it was called
  pthread_t thread;
  clockid_t clock;  // of the thread's CPU time
};

// Workers are moved explicitly only where the kernel places them badly: it tends to wake a worker on the busy
// core of the waking thread, and takes about 10 ms to correct that.
bool CoresExcept(int core, CoreSet* cores) {
  const int bits = 8 * sizeof(unsigned long);
  ReadAffinity(cores);
  if (core < 0 || size_t(core) >= 8 * cores->bytes) return false;
  cores->words[core / bits] &= ~(1ul << core % bits);
  for (unsigned long word : cores->words) {
    if (word != 0) return true;
  }
  return false;
}

void MoveFrom(int core, Worker* worker) {
  CoreSet cores;
  if (!CoresExcept(core, &cores)) return;
  pthread_setaffinity_np(worker->thread, cores.bytes, reinterpret_cast<cpu_set_t*>(cores.words));
}

// Allows all cores for the calling thread. The kernel then places it as well as any other thread.
void AllowAllCores() {
  CoreSet cores;
  ReadAffinity(&cores);
  if (cores.bytes) syscall(SYS_sched_setaffinity, 0, cores.bytes, cores.words);
}

// How often another thread has taken the core of this one.
long Switches() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// Whether the ticket changed while this thread watched it for so long. `taken`: another took the core. (A
// yield may take long without that, if the machine is a virtual one.)
bool WatchTicket(const Worker* self, u32 seen, u64 nanoseconds, u32* ticket, bool* taken) {
  const int kPollsPerLook = 64;  // at the clock
  u64 start = nanoseconds ? Nanoseconds() : 0, now = start;
  long switches = -1;  // not known yet
  do {
    for (int i = 0; i < kPollsPerLook; ++i) {
      *ticket = __atomic_load_n(&self->ticket, __ATOMIC_ACQUIRE);
      if (*ticket != seen) return true;
      ck_pause();
    }
    if (nanoseconds == 0) return false;
    u64 looked = Nanoseconds();
    if (looked - start > kIdleNanoseconds) {
      if (switches < 0) switches = Switches();
      sched_yield();
      now = Nanoseconds();
      *taken = now - looked > kTakenNanoseconds && Switches() != switches;
      if (*taken) return false;
    } else {
      now = looked;
    }
  } while (now - start < nanoseconds);
  return false;
}

void EndPauseOfLate(const Worker* worker);  // in runtime_pool.h

// Returns the new ticket, after sleep with all cores allowed. `late`: for the call before.
u32 AwaitTicket(Worker* self, u32 seen, u64 nanoseconds, bool late, bool* taken) {
  u32 ticket;
  if (late) {
    if (WatchTicket(self, seen, kProofNanoseconds, &ticket, taken)) return ticket;
    if (!*taken) EndPauseOfLate(self);
  }
  if (!*taken && WatchTicket(self, seen, nanoseconds, &ticket, taken)) return ticket;
  ticket = seen;
  if (!__atomic_compare_exchange_n(&self->ticket, &ticket, seen | kAsleep, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    return ticket;
  }
  do {
    syscall(SYS_futex, &self->ticket, FUTEX_WAIT_PRIVATE, seen | kAsleep, nullptr, nullptr, 0);
    ticket = __atomic_load_n(&self->ticket, __ATOMIC_ACQUIRE);
  } while (ticket == (seen | kAsleep));
  AllowAllCores();
  return ticket;
}

void* WorkerMain(void* argument) {
  auto* self = static_cast<Worker*>(argument);
  prctl(PR_SET_NAME, "cocktail_unit");
  AllowAllCores();  // not those of the thread that happened to start this one
  u32 ticket = 0;
  u64 watch = kIdleNanoseconds, shy_until = 0;  // a number of calls
  bool late = false;
  for (u64 calls = 1;; ++calls) {
    u64 start = Nanoseconds();
    bool taken = false;
    ticket = AwaitTicket(self, ticket, watch, late, &taken);
    if (taken) shy_until = calls + kShyCalls;
    bool busy = calls >= shy_until && Nanoseconds() - start < kBusyNanoseconds;
    u32 called = ticket;
    late = !__atomic_compare_exchange_n(&self->answer, &called, ticket | kPresent, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE);
    if (late) {
      watch = kBusyNanoseconds;  // too late for this call, but ready for the next one
      continue;
    }
    Call* call = self->call;
    bool sleeps = call->sleeps;
    watch = !call->fits ? 0 : busy ? kBusyNanoseconds : kIdleNanoseconds;
    self->code = call->work(call, self->number);
    self->core = sched_getcpu();
    __atomic_store_n(&self->done, ticket, __ATOMIC_RELEASE);
    if (sleeps) syscall(SYS_futex, &self->done, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

// `core`: of the caller, which the worker should not share; -1: it may.
void Begin(Worker* worker, Call* call, i64 number, int core) {
  worker->call = call;
  worker->number = number;
  bool first = worker->called == 0;
  u32 ticket = worker->called + 2;
  if (ticket == 0) ticket = 2;
  worker->called = ticket;
  __atomic_store_n(&worker->answer, ticket, __ATOMIC_RELEASE);
  worker->slept = __atomic_exchange_n(&worker->ticket, ticket, __ATOMIC_ACQ_REL) & kAsleep;
  if (core >= 0 && (worker->slept || (!first && worker->core == core))) MoveFrom(core, worker);
  if (worker->slept) syscall(SYS_futex, &worker->ticket, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  worker->slept |= first;
}

bool IsPresent(const Worker* worker) {
  return __atomic_load_n(&worker->answer, __ATOMIC_ACQUIRE) & kPresent;
}

// False if the worker has come in the last moment.
bool Withdraw(Worker* worker) {
  u32 called = worker->called;
  return __atomic_compare_exchange_n(&worker->answer, &called, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

bool IsDone(const Worker* worker) {
  return __atomic_load_n(&worker->done, __ATOMIC_ACQUIRE) == worker->called;
}

// nullptr if the system cannot start a thread.
Worker* StartWorker() {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(Worker), sizeof(Worker)) != 0) return nullptr;
  memset(memory, 0, sizeof(Worker));
  auto* worker = static_cast<Worker*>(memory);
  CoreSet cores;
  bool apart = CoresExcept(sched_getcpu(), &cores);
  if (!StartThread(&worker->thread, WorkerMain, worker, apart ? &cores : nullptr)) {
    free(memory);
    return nullptr;
  }
  if (pthread_getcpuclockid(worker->thread, &worker->clock) != 0) {
    worker->clock = CLOCK_MONOTONIC;  // then it never seems to lose its core
  }
  return worker;
}

void SleepUntilDone(Worker* worker) {
  u32 seen;
  while ((seen = __atomic_load_n(&worker->done, __ATOMIC_ACQUIRE)) != worker->called) {
    syscall(SYS_futex, &worker->done, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_WORKERS_H
