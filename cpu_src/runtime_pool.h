// The worker pool of the process, and how many units a call may have now: as many as there are cores, less
// those that other processes have taken.
#ifndef COCKTAIL_RUNTIME_POOL_H
#define COCKTAIL_RUNTIME_POOL_H

#include <dlfcn.h>

#include "runtime_memory.h"
#include "runtime_stop.h"
#include "runtime_workers.h"

namespace {

const u64 kCountNanoseconds = 1000000000;  // between two counts of the cores

pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
Worker* idle_workers = nullptr;  // the one that ran last comes first: it may still be awake
i64 running_units = 0;           // of calls that asked for more than one, and workers that run calls alone
i64 chosen_units = 0;            // by ck_cpu_set_units; 0: automatic
i64 usable_cores = 0;            // 0: not known yet
u64 counted_at = 0;              // when the cores were counted

// Affinity and quota may change, so the cores are counted again from time to time.
i64 Cores(u64 now) {
  i64 cores = __atomic_load_n(&usable_cores, __ATOMIC_RELAXED);
  if (cores > 0 && now < __atomic_load_n(&counted_at, __ATOMIC_RELAXED) + kCountNanoseconds) return cores;
  cores = UsableCores();
  __atomic_store_n(&usable_cores, cores, __ATOMIC_RELAXED);
  __atomic_store_n(&counted_at, now, __ATOMIC_RELAXED);
  return cores;
}

i64 MostUnitsOfACall(u64 now) {
  i64 chosen = __atomic_load_n(&chosen_units, __ATOMIC_RELAXED);
  i64 units = chosen > 0 ? chosen : Cores(now);
  return units < CK_MOST_UNITS ? units : CK_MOST_UNITS;
}

// ---- pauses ---------------------------------------------------------------------------------------------

// After a call has lost a core to another process for long, calls have fewer units for a while: at first
// for the length of the call, and twice as long every time that another call loses a core soon after the
// pause. A worker that was too late for a call but has its core to itself ends the pause, unless that was
// of no use several times in a row.
const u64 kSoon = 16;  // times the least pause: so few calls run in between that most of them would be late
const u64 kLongestPause = 1000000000;  // nanoseconds; longer for very long calls
const u64 kLongestEnded = 100000000;   // nanoseconds: a longer pause lasts

struct Pause {  // under pool_mutex
  u64 length;
  u64 end;
  i64 units;  // of a call until then
  i64 count;  // pauses so far: calls that have lost units
  const Worker* late;  // that did not come; nullptr: a unit lost its core
} pause_of_pool = {0, 0, 0, 0, nullptr};

// `least`: nanoseconds; `units`: of the calls in the pause; `late`: see Pause.
void PauseFor(u64 least, i64 units, const Worker* late) {
  u64 now = Nanoseconds();
  pthread_mutex_lock(&pool_mutex);
  Pause& pause = pause_of_pool;
  if (now < pause.end && pause.late == nullptr) late = nullptr;
  bool soon = now < pause.end + kSoon * least;
  u64 length = soon ? 2 * pause.length : 0;
  if (length > kLongestPause) length = kLongestPause;
  if (length < least) length = least;
  pause = Pause{length, now + length, units, pause.count + 1, late};
  pthread_mutex_unlock(&pool_mutex);
}

// A worker that did not come has a core by now.
void EndPauseOfLate(const Worker* worker) {
  u64 now = Nanoseconds();
  pthread_mutex_lock(&pool_mutex);
  Pause& pause = pause_of_pool;
  if (pause.late == worker && pause.length <= kLongestEnded && now < pause.end) pause.end = now;
  pthread_mutex_unlock(&pool_mutex);
}

// The units that a call of `most` may have now.
i64 UnitsNow(i64 most, u64 now) {
  bool fits = most <= Cores(now);  // if not, the user has chosen so
  return fits && now < pause_of_pool.end && most > pause_of_pool.units ? pause_of_pool.units : most;
}

// ---- shares ---------------------------------------------------------------------------------------------

// Of a thread: when it was read, and the nanoseconds that the thread ran and waited for a core until then.
struct Share {
  u64 at, ran, waited;
};
__thread Share share_of_caller = {0, 0, 0};
u64 crowded_until = 0;  // nanoseconds; see runtime_alone.h

// ---- leases ---------------------------------------------------------------------------------------------

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
  tidying = false;
  crowded_until = 0;
  ForgetRuns();
  share_of_caller = Share{0, 0, 0};  // the kernel counts anew
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
// calls together do not exceed `most`; only further calls run with fewer units.
i64 LeaseWorkers(i64 wanted, i64 most, bool exact, u64 now, Worker** workers) {
  i64 count = 0;
  pthread_mutex_lock(&pool_mutex);
  ++running_units;
  if (!exact) {
    most = UnitsNow(most, now);
    if (wanted > most - running_units) wanted = most > running_units ? most - running_units : 0;
  }
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

// The worker that has rested longest, out of at least `least`; nullptr if there is none.
Worker* LeaseRested(i64 least) {
  pthread_mutex_lock(&pool_mutex);
  ++running_units;
  Worker** last = &idle_workers;
  i64 idle = 0;
  for (Worker** each = &idle_workers; *each != nullptr; each = &(*each)->next, ++idle) last = each;
  Worker* worker = idle >= least ? *last : nullptr;
  if (worker != nullptr) *last = nullptr;
  pthread_mutex_unlock(&pool_mutex);
  if (worker == nullptr) worker = StartWorker();
  if (worker != nullptr) return worker;
  pthread_mutex_lock(&pool_mutex);
  --running_units;
  pthread_mutex_unlock(&pool_mutex);
  return nullptr;
}

// `units`: those that the lease has counted.
void ReturnWorkers(i64 count, Worker** workers, i64 units) {
  pthread_mutex_lock(&pool_mutex);
  for (i64 i = count - 1; i >= 0; --i) {
    workers[i]->next = idle_workers;
    idle_workers = workers[i];
  }
  running_units -= units;
  pthread_mutex_unlock(&pool_mutex);
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_POOL_H
