// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 1
#define CK_RESULTS 1
#define CK_MOST_UNITS 132
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 64
#define CK_RESIDENT_BYTES 0
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  const i32* const p0 = (const i32*)(operands[0]);
  i32* const r0 = (i32*)(results[0]);
  i32 v65;
  i32 v66;
  bool v70;
  i32 v71;
  i32 v72;
  i32 v74;
  bool v75;
  i32 v76;
  i32 v78;
  i32 v80;
  i32 v81;
  i32 v82;
  i32 v87;
  for (i32 v37 = ck_first_trip(unit); v37 < 10000; v37 += ck_next_trip(unit)) {
    {
      const i32 n1 = ck_clamp_index(i64(v37), 9999);
      const i32 t2 = p0[n1];
      v65 = t2;
      v66 = v65;
    }
    v71 = v66;
    v72 = i32(0);
    for (;;) {
      {
        const bool t3 = v71 > i32(1);
        v70 = t3;
      }
      if (!v70) break;
      {
        const i32 t4 = ck_rem(v71, i32(2));
        v74 = t4;
        const bool t5 = v74 == i32(0);
        v75 = t5;
        const i32 t6 = ck_div(v71, i32(2));
        v76 = t6;
        const i32 t7 = v71 * i32(3);
        v78 = t7;
        const i32 t8 = v78 + i32(1);
        v80 = t8;
        const i32 t9 = v75 ? v76 : v80;
        v81 = t9;
        const i32 t10 = v72 + i32(1);
        v82 = t10;
      }
      v71 = v81;
      v72 = v82;
    }
    {
      v87 = v72;
      const i32 n11 = ck_clamp_index(i64(v37), 9999);
      r0[n11] = v87;
    }
  }
}
CK_ENTRIES
