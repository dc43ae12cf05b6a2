// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_scan.h"
#include "cocktail_units.h"
CK_NOINLINE void outlined0(f32* x0, const f32* x1, f32* x2) {
  ck_dot_fixed<f32, f32, f32, 1, 11, 16, 0, 1, 11, 1, 0, 1>(1, x0, 0, x1, 0, x2, 0);
}

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const u64* const alarm = (const u64*)(unit->alarm);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w64_f32 = (f32*)(workspace + 64);
  i64 trip0;
  bool v10;
  bool v11;
  i32 v16;
  i32 v18;
  i32 v2;
  i32 v6;
  i32 v7;
  bool v8;
  v2 = *(const i32*)operands[2];
  v6 = v2;
  v7 = i32(0);
  trip0 = 0;
  for (;;) {
    if (ck_stops(unit, alarm, 0, trip0)) return 0;
    for (i64 end = trip0 + 64; trip0 < end; ++trip0) {
      {
        const bool t1 = v6 != i32(0);
        v8 = t1;
        const bool t2 = v7 < i32(50);
        v10 = t2;
        const bool t3 = v8 & v10;
        v11 = t3;
      }
      if (!v11) break;
      const f32* const d12 = p0 + ck_clamp_index(v6, 10) * 16;
      {
        CK_LANES
        for (i64 i0 = 0; i0 < 16; ++i0) {
          const f32 t4 = d12[i0];
          const f32 t5 = ck_tanh(t4);
          w0_f32[i0] = t5;
        }
      }
      outlined0(w0_f32, p1, w64_f32);
      {
        i32 s7[1];
        const i64 n6 = ck_arg_row<true, f32>(11, [&](i64 k) CK_INLINED { return w64_f32[k]; });
        s7[0] = i32(n6);
        v16 = s7[0];
      }
      {
        const i32 t8 = v7 + i32(1);
        v18 = t8;
      }
      v6 = v16;
      v7 = v18;
    }
    if (!v11) break;
  }
  *(i32*)results[0] = v6;
  *(i32*)results[1] = v7;
  return 0;
}
