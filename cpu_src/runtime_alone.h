// A call of a program on one unit.
//
// The kernel shares cores among threads. On a crowded machine, a thread that computes all the time loses its
// core for many slices of time; stock XLA, whose threads hand work to each other and sleep in between, waits
// less. There, a caller sleeps before its slice ends, while a worker runs a call. Many workers do so in turn:
// the one that has rested longest gets a core first.
#ifndef COCKTAIL_RUNTIME_ALONE_H
#define COCKTAIL_RUNTIME_ALONE_H

#include "runtime_entry.h"
#include "runtime_pool.h"

namespace {

const u64 kWindowNanoseconds = 50000000;     // between two looks at a caller's share of a core
const u64 kCrowdedNanoseconds = 1000000000;  // workers run the calls for so long, then the caller tries again
const u64 kCrowdedWaits = 2;                 // crowded: the caller waits this many times as long as it runs
const u64 kSliceNanoseconds = 1500000;       // Linux on two cores takes a core after 1.4 ms if others wait
const i64 kRestedWorkers = 16;               // each computes less than its share

// Called from time to time, by a thread that has run a call.
void LookAtShare(u64 now) {
  char text[128];
  unsigned long long ran = 0, waited = 0;
  Share before = share_of_caller;
  share_of_caller.at = now;
  ReadText("/proc/thread-self/schedstat", text, sizeof(text));
  if (sscanf(text, "%llu %llu", &ran, &waited) != 2) return;
  share_of_caller = Share{now, ran, waited};
  bool crowded = before.at != 0 && waited - before.waited > kCrowdedWaits * (ran - before.ran);
  if (crowded) __atomic_store_n(&crowded_until, now + kCrowdedNanoseconds, __ATOMIC_RELAXED);
}

__thread u64 ran_of_caller = 0;  // nanoseconds that its calls took since it has rested

struct AloneCall : Call {
  Entry* entry;
  const void* const* operands;
  void* const* results;
  u8* workspace;
  u8* own;
  const i64* sizes;
  u64 float_mode;
  Run* run;
};

struct AloneUnit : CkUnit {
  Run* run;
};

bool StopsAlone(CkUnit* unit, i64 loop, i64 trip) {
  return AsksToStop(static_cast<AloneUnit*>(unit)->run, loop, trip);
}

int RunHere(AloneCall* call) {
  AloneUnit unit;
  static_cast<CkUnit&>(unit) = {0, 1, call->own, nullptr, call->sizes, AlarmOf(call->run), StopsAlone};
  unit.run = call->run;
  return call->entry->function(call->operands, call->results, call->workspace, &unit);
}

int WorkAlone(Call* call, i64) {
  auto* self = static_cast<AloneCall*>(call);
  SetFloatMode(self->float_mode);
  return RunHere(self);
}

int RunAlone(Entry* entry, const void* const* operands, void* const* results, u8* workspace, u8* own,
             const i64* sizes, Run* run, u64 start) {
  AloneCall call = {{WorkAlone, false, true}, entry, operands, results, workspace, own, sizes, 0, run};
  bool crowded = start < __atomic_load_n(&crowded_until, __ATOMIC_RELAXED);
  if (crowded && ran_of_caller + Least(&entry->alone) >= kSliceNanoseconds) {
    ran_of_caller = 0;
    Worker* worker = LeaseRested(kRestedWorkers);
    if (worker != nullptr) {
      call.float_mode = FloatMode();
      Begin(worker, &call, 0, -1);
      SleepUntilDone(worker);
      int code = worker->code;
      ReturnWorkers(1, &worker, 1);
      return code;
    }
  }
  int code = RunHere(&call);
  u64 now = Nanoseconds();
  if (!IsStopped(run)) KeepLeast(&entry->alone, now - start);
  ran_of_caller += now - start;
  if (now - share_of_caller.at > kWindowNanoseconds) LookAtShare(now);
  return code;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_ALONE_H
