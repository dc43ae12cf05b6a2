// The worker pool of the process, and the call of a program by several units.
//
// A call leases idle workers and runs with those it gets, possibly alone. It never waits for workers that
// serve another call. Workers start when first needed, spin for a short time for the next call, and then
// sleep. They are detached and own nothing that the end of the process would have to release.
#ifndef COCKTAIL_RUNTIME_UNITS_H
#define COCKTAIL_RUNTIME_UNITS_H

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cocktail_units.h"
#include "runtime_cores.h"
#include "runtime_float.h"
#include "runtime_memory.h"

namespace {

typedef int ProgramFunction(const void* const* operands, void* const* results, u8* workspace,
                            const CkUnit* unit);

// ---- spinning and yielding ------------------------------------------------------------------------------

// Polls of a barrier, about 40 us, before the unit yields its core. With much less, two units that share
// their cores with busy processes give away whole time slices in turn.
const u64 kSpins = 2000;
const u64 kSpinsOversubscribed = 30;  // if the awaited unit probably needs this core
const u64 kYields = 20000;            // then short sleeps: some milliseconds have passed
const u64 kIdleNanoseconds = 50000;   // a worker spins this long for its next call before it sleeps
// The longer time of a worker whose last call came within it: its program is called repeatedly, with other
// work in between. It yields its core at every look at the clock and sleeps once another thread has taken the
// core, because a woken thread gets a core sooner than one that waits. It then is shy (uses the shorter time)
// for some calls.
const u64 kBusyNanoseconds = 2000000;
const u64 kTakenNanoseconds = 20000;  // a yield that takes longer than that let another thread run
const u64 kShyCalls = 100;

void Yield(u64 times) {
  if (times < kYields) {
    sched_yield();
  } else {
    timespec pause = {0, 50000};
    nanosleep(&pause, nullptr);
  }
}

u64 Nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return u64(now.tv_sec) * 1000000000u + u64(now.tv_nsec);
}

// ---- workers --------------------------------------------------------------------------------------------

// The data that all units of a call share.
struct Call {
  ProgramFunction* function;
  const void* const* operands;
  void* const* results;
  u8* workspace;
  u64 float_mode;
  bool fits;  // every unit has a core
};

const u32 kAsleep = 1;  // in the ticket: the worker must be woken

struct alignas(128) Worker {
  // Written by the caller, `ticket` last. It increases by two per call.
  u32 ticket;
  const Call* call;
  CkUnit unit;
  // Written by the worker; `done` last: calls finished. On a line that the caller may watch undisturbed.
  alignas(128) u64 done;
  int code;
  int core;  // where it ran last
  // Used by whoever holds the worker.
  alignas(128) u64 calls;
  Worker* next;
  pthread_t thread;
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

// Whether the ticket changed while this thread watched it for so long. `taken`: another took the core.
bool WatchTicket(const Worker* self, u32 seen, u64 nanoseconds, u32* ticket, bool* taken) {
  const int kPollsPerLook = 64;  // at the clock
  u64 start = nanoseconds ? Nanoseconds() : 0, now = start;
  do {
    for (int i = 0; i < kPollsPerLook; ++i) {
      *ticket = __atomic_load_n(&self->ticket, __ATOMIC_ACQUIRE);
      if (*ticket != seen) return true;
      ck_pause();
    }
    if (nanoseconds == 0) return false;
    u64 looked = Nanoseconds();
    if (looked - start > kIdleNanoseconds) {
      sched_yield();
      now = Nanoseconds();
      *taken = now - looked > kTakenNanoseconds;
      if (*taken) return false;
    } else {
      now = looked;
    }
  } while (now - start < nanoseconds);
  return false;
}

// Returns the new ticket, after sleep with all cores allowed.
u32 AwaitTicket(Worker* self, u32 seen, u64 nanoseconds, bool* taken) {
  u32 ticket;
  if (WatchTicket(self, seen, nanoseconds, &ticket, taken)) return ticket;
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
  for (u64 calls = 1;; ++calls) {
    u64 start = Nanoseconds();
    bool taken = false;
    ticket = AwaitTicket(self, ticket, watch, &taken);
    if (taken) shy_until = calls + kShyCalls;
    bool busy = calls >= shy_until && Nanoseconds() - start < kBusyNanoseconds;
    const Call* call = self->call;
    CkUnit unit = self->unit;
    watch = !call->fits ? 0 : busy ? kBusyNanoseconds : kIdleNanoseconds;
    SetFloatMode(call->float_mode);
    self->code = call->function(call->operands, call->results, call->workspace, &unit);
    self->core = sched_getcpu();
    __atomic_store_n(&self->done, calls, __ATOMIC_RELEASE);
  }
}

// `core`: of the caller, which the worker should not share; -1: it may.
void Begin(Worker* worker, const Call* call, const CkUnit& unit, int core) {
  worker->call = call;
  worker->unit = unit;
  u32 ticket = u32(++worker->calls * 2);
  bool asleep = __atomic_exchange_n(&worker->ticket, ticket, __ATOMIC_ACQ_REL) & kAsleep;
  if (core >= 0 && (asleep || (ticket > 2 && worker->core == core))) {
    MoveFrom(core, worker);
  }
  if (asleep) {
    syscall(SYS_futex, &worker->ticket, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

// nullptr if the system cannot start a thread. Workers block signals, which are for the user's threads,
// except faults, so that fault handlers work.
Worker* StartWorker() {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(Worker), sizeof(Worker)) != 0) return nullptr;
  memset(memory, 0, sizeof(Worker));
  const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int fault : faults) sigdelset(&blocked, fault);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  auto* worker = static_cast<Worker*>(memory);
  CoreSet cores;
  if (CoresExcept(sched_getcpu(), &cores)) {
    pthread_attr_setaffinity_np(&attributes, cores.bytes, reinterpret_cast<cpu_set_t*>(cores.words));
  }
  int problem = pthread_create(&worker->thread, &attributes, WorkerMain, worker);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (problem == 0) return worker;
  free(memory);
  return nullptr;
}

// ---- the pool -------------------------------------------------------------------------------------------

pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
Worker* idle_workers = nullptr;  // the one that ran last comes first: it may still be awake
i64 running_units = 0;           // in calls that asked for more than one unit, their callers included
i64 chosen_units = 0;            // by ck_cpu_set_units; 0: automatic
i64 usable_cores = 0;            // 0: not known yet

i64 Cores() {
  i64 cores = __atomic_load_n(&usable_cores, __ATOMIC_RELAXED);
  if (cores > 0) return cores;
  cores = UsableCores();
  __atomic_store_n(&usable_cores, cores, __ATOMIC_RELAXED);
  return cores;
}

i64 MostUnitsOfACall() {
  i64 chosen = __atomic_load_n(&chosen_units, __ATOMIC_RELAXED);
  i64 units = chosen > 0 ? chosen : Cores();
  return units < CK_MOST_UNITS ? units : CK_MOST_UNITS;
}

// A child of fork() has one thread, so its pool starts empty.
void BeforeFork() {
  pthread_mutex_lock(&pool_mutex);
  pthread_mutex_lock(&arena_mutex);
}
void AfterForkInParent() {
  pthread_mutex_unlock(&arena_mutex);
  pthread_mutex_unlock(&pool_mutex);
}
void AfterForkInChild() {
  idle_workers = nullptr;
  running_units = 0;
  usable_cores = 0;
  AfterForkInParent();
}

// Once per process. Sleeping threads need this library even if its last user closes it.
void Prepare() {
  pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&WorkerMain), &info) && info.dli_fname) {
    (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}
pthread_once_t prepare_once = PTHREAD_ONCE_INIT;

// Takes up to `wanted` workers into `workers` and returns their number. Unless `exact`, the units of all
// calls together do not exceed the cores; only further calls run with fewer units.
i64 LeaseWorkers(i64 wanted, bool exact, Worker** workers) {
  i64 most = MostUnitsOfACall(), count = 0;
  pthread_mutex_lock(&pool_mutex);
  ++running_units;
  if (!exact && wanted > most - running_units) wanted = most > running_units ? most - running_units : 0;
  for (; count < wanted && idle_workers != nullptr; ++count) {
    workers[count] = idle_workers;
    idle_workers = idle_workers->next;
  }
  running_units += wanted;
  pthread_mutex_unlock(&pool_mutex);
  i64 missing = 0;
  while (count + missing < wanted) {
    workers[count] = StartWorker();
    if (workers[count] != nullptr) {
      ++count;
    } else {
      ++missing;
    }
  }
  if (missing > 0) {
    pthread_mutex_lock(&pool_mutex);
    running_units -= missing;
    pthread_mutex_unlock(&pool_mutex);
  }
  return count;
}

void ReturnWorkers(i64 count, Worker** workers) {
  pthread_mutex_lock(&pool_mutex);
  for (i64 i = count - 1; i >= 0; --i) {
    workers[i]->next = idle_workers;
    idle_workers = workers[i];
  }
  running_units -= count + 1;
  pthread_mutex_unlock(&pool_mutex);
}

// ---- calls ----------------------------------------------------------------------------------------------

// Runs the call on this thread and `num_workers` others. Returns the code of the first failed unit, or 0.
__attribute__((noinline)) int RunTeam(Call call, i64 num_workers, Worker** workers, u8* own, i64 stride) {
  i64 count = num_workers + 1, groups = (count + CK_FLAT_UNITS - 1) / CK_FLAT_UNITS;
  i64 bytes = i64(sizeof(CkTeam)) + (count + groups) * i64(sizeof(CkCounter));
  auto* memory = static_cast<u8*>(__builtin_alloca(size_t(bytes) + alignof(CkTeam)));
  memory += -reinterpret_cast<u64>(memory) % alignof(CkTeam);
  auto* team = reinterpret_cast<CkTeam*>(memory);
  auto* counters = reinterpret_cast<CkCounter*>(team + 1);
  bool fits = count <= Cores();
  *team = CkTeam{counters, counters + count, Yield, fits ? kSpins : kSpinsOversubscribed, {0}, {0}};
  for (i64 i = 0; i < count + groups; ++i) counters[i].value = 0;
  call.fits = fits;
  int core = fits && num_workers > 0 ? sched_getcpu() : -1;
  for (i64 i = 1; i < count; ++i) Begin(workers[i - 1], &call, {i, count, own + i * stride, team}, core);
  CkUnit unit = {0, count, own, team};
  int code = call.function(call.operands, call.results, call.workspace, &unit);
  for (i64 i = 0; i < num_workers; ++i) {
    ck_await(&workers[i]->done, workers[i]->calls, team);
    if (code == 0) code = workers[i]->code;
  }
  return code;
}

// The runtime's record of a program.
struct Entry {
  ProgramFunction* function;
  i64 most_units;
  i64 own_bytes;
};

// `workspace`: the caller's, or nullptr to lease `workspace_bytes`. `units` > 0: exactly this many if the
// program has work for them; 0: as many as are idle. Returns false if there is no memory.
bool RunProgram(const Entry& entry, const void* const* operands, void* const* results, u8* workspace,
                i64 workspace_bytes, i64 units, int* code) {
  pthread_once(&prepare_once, Prepare);
  i64 wanted = units > 0 ? units : entry.most_units > 1 ? MostUnitsOfACall() : 1;
  if (wanted > entry.most_units) wanted = entry.most_units;
  if (wanted > CK_MOST_UNITS) wanted = CK_MOST_UNITS;
  if (wanted < 1) wanted = 1;
  const i64 page = i64(kPage), huge = i64(1) << 52;
  if (entry.own_bytes > huge || workspace_bytes > huge) return false;
  i64 stride = (entry.own_bytes + page - 1) / page * page, own_start = 0, bytes = wanted * stride;
  if (workspace == nullptr && workspace_bytes > 0) {
    own_start = stride ? (workspace_bytes + page - 1) / page * page : workspace_bytes;
    bytes += own_start;
  }
  Arena arena = {nullptr, 0};
  if (bytes > 0) {
    arena = LeaseArena(size_t(bytes));
    if (arena.memory == nullptr) return false;
  }
  if (own_start > 0) workspace = arena.memory;
  u8* own = stride ? arena.memory + own_start : nullptr;
  if (wanted == 1) {
    CkUnit unit = {0, 1, own, nullptr};
    *code = entry.function(operands, results, workspace, &unit);
  } else {
    Worker* workers[CK_MOST_UNITS];
    i64 got = LeaseWorkers(wanted - 1, units > 0, workers);
    Call call = {entry.function, operands, results, workspace, FloatMode(), true};
    *code = RunTeam(call, got, workers, own, stride);
    ReturnWorkers(got, workers);
  }
  ReturnArena(arena);
  return true;
}

}  // namespace

// Sets the number of units of a call: `units`, or as many as affinity and quota allow if it is 0.
CK_EXPORT void ck_cpu_set_units(i64 units) {
  __atomic_store_n(&chosen_units, units > 0 ? units : 0, __ATOMIC_RELAXED);
  __atomic_store_n(&usable_cores, 0, __ATOMIC_RELAXED);
}

CK_EXPORT i64 ck_cpu_units(void) { return MostUnitsOfACall(); }

// For tests and tools: a call without XLA on exactly `units` units (0: on the idle ones), if the program has
// work for them and the system has threads. Returns the program's code, or -1 if there is no memory.
CK_EXPORT int ck_cpu_run(const void* function, i64 most_units, i64 own_bytes, const void* const* operands,
                         void* const* results, u8* workspace, i64 units) {
  int code = 0;
  Entry entry = {reinterpret_cast<ProgramFunction*>(const_cast<void*>(function)), most_units, own_bytes};
  return RunProgram(entry, operands, results, workspace, 0, units, &code) ? code : -1;
}

#endif  // COCKTAIL_RUNTIME_UNITS_H
