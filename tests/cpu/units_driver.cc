// Hammers the worker pool from several threads, for the sanitizers; and the parts that need no library.
#include "runtime_units.h"

namespace {

const i64 kThreads = 4, kCalls = 60, kRounds = 20;

// Every unit writes its cell and reads all others between two barriers. Memory of its own keeps its bytes.
int Exchange(const void* const*, void* const* results, u8* workspace, CkUnit* unit) {
  i64* cells = static_cast<i64*>(results[0]);
  const u8 number = u8(unit->index);  // of this unit, until others leave
  int wrong = 0;
  for (i64 i = 0; i < 64; ++i) unit->own[i] = number;
  for (i64 round = 0; round < kRounds; ++round) {
    cells[unit->index] = round;
    ck_arrive(unit);
    if (ck_wait(unit)) return wrong;
    for (i64 i = 0; i < unit->count; ++i) wrong |= cells[i] != round;
    ck_arrive(unit);
    if (ck_wait(unit)) return wrong;
  }
  for (i64 i = 0; i < 64; ++i) wrong |= unit->own[i] != number;
  if (unit->index == 0) workspace[0] = 1;
  return wrong;
}

const i64 kParts = 24, kMostTries = 300;

// The units share parts, whose numbers they know, and look at all of them behind every barrier. Unit `late`
// of `first` sleeps in one round, as if it had lost its core, and so leaves. Nothing may be done twice or
// not at all.
struct Lateness {
  i64 late, first, last;  // unit, and numbers of units at the beginning and at the end
};

int Parts(const void* const* operands, void* const* results, u8*, CkUnit* unit) {
  i64* cells = static_cast<i64*>(results[0]);
  auto* lateness = const_cast<Lateness*>(static_cast<const Lateness*>(operands[0]));
  i64 number = unit->index;
  int wrong = 0;
  if (number == 0) lateness->first = unit->count;
  for (i64 round = 0; round < kRounds; ++round) {
    if (number == lateness->late && (round == 3 || round == 7)) Sleep(3000000);
    for (i64 part = unit->index; part < kParts; part += unit->count) cells[part] += 1;
    ck_arrive(unit);
    if (ck_wait(unit)) return wrong;
    for (i64 part = 0; part < kParts; ++part) wrong |= cells[part] != round + 1;
    ck_arrive(unit);
    // Between the halves of a barrier: the parts are still those of the same unit.
    for (i64 part = unit->index; part < kParts; part += unit->count) cells[kParts + part] += 1;
    if (ck_wait(unit)) return wrong;
    for (i64 part = unit->index; part < kParts; part += unit->count) {
      wrong |= cells[kParts + part] != round + 1;
    }
  }
  if (number == 0) lateness->last = unit->count;
  return wrong;
}

int Nothing(Call*, i64) { return 0; }

i64 UnitsOfPause(i64 most) {
  pthread_mutex_lock(&pool_mutex);
  i64 units = UnitsNow(most, Nanoseconds());
  pthread_mutex_unlock(&pool_mutex);
  return units;
}

void SetPause(Pause pause) {
  pthread_mutex_lock(&pool_mutex);
  pause_of_pool = pause;
  pthread_mutex_unlock(&pool_mutex);
}

// Calls in which units come late or leave, on as many units as if there were cores for them. `left`: how
// often one left.
i64 LateUnits(i64 units, i64* left) {
  i64 wrong = 0;
  usable_cores = units;
  counted_at = Nanoseconds() + (u64(1) << 60);
  for (i64 late = 1; late < units; ++late) {
    i64 cells[2 * kParts] = {};
    Lateness lateness = {late, 0, 0};
    const void* operands[] = {&lateness};
    void* results[] = {cells};
    SetPause(Pause{});
    Entry entry = {Parts, CK_MOST_UNITS, 0, 0};
    End end = {};
    wrong += !RunProgram(&entry, operands, results, {}, 0, &end) || end.code != 0;
    for (i64 cell : cells) wrong += cell != kRounds;
    bool fewer = lateness.last < units;
    *left += lateness.last < lateness.first;
    wrong += lateness.first > units || lateness.last > lateness.first;
    wrong += fewer && (pause_of_pool.count == 0 || pause_of_pool.units >= units);
  }
  usable_cores = 0;
  SetPause(Pause{});
  return wrong;
}

// A call goes on without a worker that has a core: the pause ends when the worker comes, not in a second. One
// for a core that was lost stays.
i64 EndedPauses() {
  const i64 kUnits = 2, kTries = 1000, kWaits = 100;
  const u64 kLength = kLongestEnded;
  usable_cores = kUnits;
  counted_at = Nanoseconds() + (u64(1) << 60);
  Worker* worker = StartWorker();
  Call call = {Nothing, true, false};
  bool ended = false;
  for (i64 attempt = 0; attempt < kTries && !ended; ++attempt) {  // another process may take the core
    SetPause(Pause{});
    PauseFor(kLength, 1, worker);
    Begin(worker, &call, 1, -1);
    if (!Withdraw(worker)) {  // it has come at once
      while (!IsDone(worker)) Sleep(10000);
      continue;
    }
    for (i64 wait = 0; wait < kWaits && !ended; ++wait) {
      Sleep(100000);
      ended = UnitsOfPause(kUnits) == kUnits;
    }
  }
  SetPause(Pause{});
  bool stayed = true;
  const Worker* others[] = {nullptr, worker};  // a unit lost its core; a worker that is not the one
  for (const Worker* late : others) {
    SetPause(Pause{});
    PauseFor(kLongestPause, 1, late);
    EndPauseOfLate(late == nullptr ? worker : nullptr);
    stayed &= UnitsOfPause(kUnits) == 1;
  }
  PauseFor(kLongestPause, 1, worker);  // too long by now
  EndPauseOfLate(worker);
  stayed &= UnitsOfPause(kUnits) == 1;
  usable_cores = 0;
  SetPause(Pause{});
  return !ended || !stayed;
}

i64 LargeArenas() {
  i64 count = 0;
  pthread_mutex_lock(&arena_mutex);
  for (int i = 0; i < num_idle_arenas; ++i) count += idle_arenas[i].size > kSmallArena;
  pthread_mutex_unlock(&arena_mutex);
  return count;
}

// Large arenas are given back when they have been idle for long.
i64 IdleArenas() {
  Arena small = LeaseArena(kSmallArena / 2), large = LeaseArena(kSmallArena * 3);
  ReturnArena(small);
  ReturnArena(large);
  u64 now = Nanoseconds();
  i64 wrong = LargeArenas() == 0;
  wrong += Tidy(now + kIdleArenaNanoseconds) || LargeArenas() != 0;
  return wrong;
}

void* Caller(void* argument) {
  i64 cells[CK_MOST_UNITS], wrong = 0;
  void* results[] = {cells};
  const i64 counts[] = {1, 2, 3, 8, 12, 0};
  Entry entry = {Exchange, CK_MOST_UNITS, 0, 0};
  for (i64 call = 0; call < kCalls; ++call) {
    End end = {};
    bool memory = RunProgram(&entry, nullptr, results, {nullptr, 100, 64, nullptr}, counts[call % 6], &end);
    wrong += !memory || end.code != 0;
  }
  *static_cast<i64*>(argument) = wrong;
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3) {  // the quota of made-up control groups
    printf("%lld\n", static_cast<long long>(ControlGroupQuota(arguments[1], arguments[2])));
    return 0;
  }
  pthread_t threads[kThreads];
  i64 wrong[kThreads], all = 0;
  for (i64 i = 0; i < kThreads; ++i) pthread_create(&threads[i], nullptr, Caller, &wrong[i]);
  for (i64 i = 0; i < kThreads; ++i) {
    pthread_join(threads[i], nullptr);
    all += wrong[i];
  }
  const i64 sizes[] = {2, 3, 12};
  for (i64 units : sizes) {
    i64 left = 0;
    for (i64 tries = 0; tries < kMostTries && left == 0; ++tries) all += LateUnits(units, &left);
    all += left == 0;
  }
  all += EndedPauses();
  all += IdleArenas();
  i64 running = running_units;
  return all != 0 || running != 0;
}
