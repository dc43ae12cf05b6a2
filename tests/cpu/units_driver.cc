// Hammers the worker pool from several threads, for the sanitizers; and the parts that need no library.
#include "runtime_units.h"

namespace {

const i64 kThreads = 4, kCalls = 60, kRounds = 20;

// Every unit writes its cell and reads all others between two barriers. Memory of its own keeps its bytes.
int Exchange(const void* const*, void* const* results, u8* workspace, const CkUnit* unit) {
  i64* cells = static_cast<i64*>(results[0]);
  int wrong = 0;
  for (i64 i = 0; i < 64; ++i) unit->own[i] = u8(unit->index);
  for (i64 round = 0; round < kRounds; ++round) {
    cells[unit->index] = round;
    ck_arrive(unit);
    ck_wait(unit);
    for (i64 i = 0; i < unit->count; ++i) wrong |= cells[i] != round;
    ck_arrive(unit);
    ck_wait(unit);
  }
  for (i64 i = 0; i < 64; ++i) wrong |= unit->own[i] != u8(unit->index);
  if (unit->index == 0) workspace[0] = 1;
  return wrong;
}

void* Caller(void* argument) {
  i64 cells[CK_MOST_UNITS], wrong = 0;
  void* results[] = {cells};
  const i64 counts[] = {1, 2, 3, 8, 12, 0};
  Entry entry = {Exchange, CK_MOST_UNITS, 64};
  for (i64 call = 0; call < kCalls; ++call) {
    int code = 0;
    bool memory = RunProgram(entry, nullptr, results, nullptr, 100, counts[call % 6], &code);
    wrong += !memory || code != 0;
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
  i64 running = running_units;
  return all != 0 || running != 0;
}
