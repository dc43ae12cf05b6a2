// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_units.h"
#if CK_IN_PART(0)
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 2;
#endif
CK_FUNCTION void outlined0(i64 x0, const f32* x1, const f32* x2, f32* x3);
CK_FUNCTION void outlined1(f32* x0, const f32* x1, f32* x2);
#if CK_IN_PART(1)
CK_FUNCTION void outlined0(i64 x0, const f32* x1, const f32* x2, f32* x3) {
  const i64 n1 = ck_clamp_index(x0, 64);
  for (i64 i0 = 0; i0 < 4; ++i0) {
    ck_dot_fixed<f32, f32, f32, 4, 64, 128, 128, 1, 512, 1, 512, 1>(1, x1, 0, x2 + 128 * i0, 0, (x3 + n1) + 128 * i0, 0);
  }
}
CK_FUNCTION void outlined1(f32* x0, const f32* x1, f32* x2) {
  for (i64 i0 = 0; i0 < 4; ++i0) {
    ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, x0, 0, x1 + 128 * i0, 0, x2 + 64 * i0, 0);
  }
}
#endif
#if CK_IN_PART(0)

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const u64* const alarm = (const u64*)(unit->alarm);
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o1024_f32 = (f32*)(unit->own + 1024);
  f32* const o2048_f32 = (f32*)(unit->own + 2048);
  f32* const o256_f32 = (f32*)(unit->own + 256);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  const f32* const p3 = (const f32*)(operands[3]);
  const f32* const p4 = (const f32*)(operands[4]);
  const f32* const p5 = (const f32*)(operands[5]);
  const f32* const p6 = (const f32*)(operands[6]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const r2 = (f32*)(results[2]);
  f32* const r3 = (f32*)(results[3]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w10240_f32 = (f32*)(workspace + 10240);
  f32* const w10752_f32 = (f32*)(workspace + 10752);
  f32* const w8192_f32 = (f32*)(workspace + 8192);
  f32* const w8704_f32 = (f32*)(workspace + 8704);
  f32* const w9216_f32 = (f32*)(workspace + 9216);
  f32* const w9728_f32 = (f32*)(workspace + 9728);
  i64 v158;
  i64 v304;
  i64 v319;
  i64 v339;
  i64 v345;
  i64 v355;
  bool v356;
  i32 v357;
  i64 v363;
  i64 v368;
  i64 v400;
  i64 v401;
  bool v402;
  i32 v403;
  i64 v409;
  i64 v414;
  i64 v446;
  i64 v447;
  bool v448;
  i32 v449;
  i64 v456;
  i64 v463;
  i64 v499;
  i64 v502;
  bool v503;
  i32 v504;
  i64 v510;
  i64 v515;
  i64 v547;
  i64 v548;
  bool v549;
  i32 v550;
  i64 v556;
  i64 v561;
  i64 v593;
  i64 v594;
  bool v595;
  i32 v596;
  i64 v603;
  i64 v610;
  for (i64 v154 = unit->index; v154 < 2; v154 += unit->count) {
    {
      const i64 t1 = v154 * i64(64LL);
      v158 = t1;
    }
    const f32* const d160 = p1 + ck_clamp_index(v158, 64) * 1;
    outlined0(v158, p0, d160, w0_f32);
  }
  for (i64 v294 = unit->index; v294 < 2; v294 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t2 = v294 * i64(64LL);
      v304 = t2;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n3 = ck_clamp_index(v304, 64);
      const i64 n4 = ck_clamp_index(v304, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t5 = o256_f32[i0];
        r1[n3 + i0] = t5;
        w8192_f32[n4 + i0] = t5;
      }
    }
  }
  for (i64 v309 = unit->index; v309 < 2; v309 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t6 = v309 * i64(64LL);
      v319 = t6;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n7 = ck_clamp_index(v319, 64);
      const i64 n8 = ck_clamp_index(v319, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t9 = o256_f32[i0];
        r2[n7 + i0] = t9;
        w8704_f32[n8 + i0] = t9;
      }
    }
  }
  for (i64 v325 = unit->index; v325 < 2; v325 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o1024_f32[i0] = 0.0f;
      }
    }
    {
      CK_LANES
      for (i64 i1 = 0; i1 < 256; ++i1) {
        o0_f32[i1] = 0.0f;
      }
    }
    {
      const i64 t10 = v325 * i64(64LL);
      v339 = t10;
    }
    {
      __builtin_memcpy(o2048_f32, o1024_f32, 256);
    }
    {
      __builtin_memcpy(o1024_f32, o0_f32, 1024);
    }
    {
      const i64 n11 = ck_clamp_index(v339, 64);
      const i64 n12 = ck_clamp_index(v339, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t13 = o2048_f32[i0];
        r3[n11 + i0] = t13;
        w9216_f32[n12 + i0] = t13;
      }
    }
    {
      const i64 n14 = ck_clamp_index(v339, 64);
      for (i64 i0 = 0; i0 < 4; ++i0) {
        CK_LANES
        for (i64 i1 = 0; i1 < 64; ++i1) {
          const f32 t15 = o1024_f32[64 * i0 + i1];
          r0[n14 + 128 * i0 + i1] = t15;
        }
      }
    }
  }
  for (i64 v343 = 0; v343 < 3; ++v343) {
    if (ck_stops(unit, alarm, 0, v343)) return 0;
    ck_arrive(unit);
    {
      const i64 t16 = v343 * i64(2LL);
      v345 = t16;
      const i64 t17 = ck_clamp(i64(0LL), v345, i64(3LL));
      v355 = t17;
      const bool t18 = v345 == v355;
      v356 = t18;
      const i32 t19 = ck_convert<i32>(v356);
      v357 = t19;
      const i64 t20 = v345 - i64(1LL);
      v400 = t20;
      const i64 t21 = ck_clamp(i64(0LL), v400, i64(3LL));
      v401 = t21;
      const bool t22 = v400 == v401;
      v402 = t22;
      const i32 t23 = ck_convert<i32>(v402);
      v403 = t23;
      const i64 t24 = v345 - i64(2LL);
      v446 = t24;
      const i64 t25 = ck_clamp(i64(0LL), v446, i64(3LL));
      v447 = t25;
      const bool t26 = v446 == v447;
      v448 = t26;
      const i32 t27 = ck_convert<i32>(v448);
      v449 = t27;
      const i64 t28 = v345 + i64(1LL);
      v499 = t28;
      const i64 t29 = ck_clamp(i64(0LL), v499, i64(3LL));
      v502 = t29;
      const bool t30 = v499 == v502;
      v503 = t30;
      const i32 t31 = ck_convert<i32>(v503);
      v504 = t31;
      const i64 t32 = v499 - i64(1LL);
      v547 = t32;
      const i64 t33 = ck_clamp(i64(0LL), v547, i64(3LL));
      v548 = t33;
      const bool t34 = v547 == v548;
      v549 = t34;
      const i32 t35 = ck_convert<i32>(v549);
      v550 = t35;
      const i64 t36 = v499 - i64(2LL);
      v593 = t36;
      const i64 t37 = ck_clamp(i64(0LL), v593, i64(3LL));
      v594 = t37;
      const bool t38 = v593 == v594;
      v595 = t38;
      const i32 t39 = ck_convert<i32>(v595);
      v596 = t39;
    }
    if (ck_wait(unit)) return 0;
    for (i64 v359 = unit->index; v359 < 2; v359 += unit->count) {
      if (v357 <= 0) {
        {
          const i64 t40 = v359 * i64(64LL);
          v363 = t40;
        }
        const f32* const d365 = r1 + ck_clamp_index(v363, 64) * 1;
        {
          const i64 n41 = ck_clamp_index(v363, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t42 = d365[i0];
            w9728_f32[n41 + i0] = t42;
          }
        }
      }
      else {
        {
          const i64 t43 = v359 * i64(64LL);
          v368 = t43;
        }
        const f32* const d370 = p2 + ck_clamp_index(v368, 64) * 1;
        const f32* const d371 = w8192_f32 + ck_clamp_index(v368, 64) * 1;
        const f32* const d372 = w0_f32 + ck_clamp_index(v355, 3) * 512 + ck_clamp_index(v368, 64) * 1;
        outlined1(r1, d370, o0_f32);
        {
          const i64 n44 = ck_clamp_index(v368, 64);
          const i64 n45 = ck_clamp_index(v368, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t46 = d372[i0 + 384];
            const f32 t47 = o0_f32[i0 + 192];
            const f32 t48 = t46 + t47;
            const f32 t49 = ck_logistic(t48);
            const f32 t50 = d372[i0 + 128];
            const f32 t51 = o0_f32[i0 + 64];
            const f32 t52 = t50 + t51;
            const f32 t53 = ck_logistic(t52);
            const f32 t54 = d371[i0];
            const f32 t55 = t53 * t54;
            const f32 t56 = d372[i0];
            const f32 t57 = o0_f32[i0];
            const f32 t58 = t56 + t57;
            const f32 t59 = ck_logistic(t58);
            const f32 t60 = d372[i0 + 256];
            const f32 t61 = o0_f32[i0 + 128];
            const f32 t62 = t60 + t61;
            const f32 t63 = ck_tanh(t62);
            const f32 t64 = t59 * t63;
            const f32 t65 = t55 + t64;
            const f32 t66 = ck_tanh(t65);
            const f32 t67 = t49 * t66;
            w9728_f32[n44 + i0] = t67;
            w8192_f32[n45 + i0] = t65;
          }
        }
      }
    }
    for (i64 v405 = unit->index; v405 < 2; v405 += unit->count) {
      if (v403 <= 0) {
        {
          const i64 t68 = v405 * i64(64LL);
          v409 = t68;
        }
        const f32* const d411 = r2 + ck_clamp_index(v409, 64) * 1;
        {
          const i64 n69 = ck_clamp_index(v409, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t70 = d411[i0];
            w10240_f32[n69 + i0] = t70;
          }
        }
      }
      else {
        {
          const i64 t71 = v405 * i64(64LL);
          v414 = t71;
        }
        const f32* const d416 = p3 + ck_clamp_index(v414, 64) * 1;
        const f32* const d417 = p4 + ck_clamp_index(v414, 64) * 1;
        const f32* const d418 = w8704_f32 + ck_clamp_index(v414, 64) * 1;
        outlined1(r1, d416, o0_f32);
        outlined1(r2, d417, o1024_f32);
        {
          const i64 n72 = ck_clamp_index(v414, 64);
          const i64 n73 = ck_clamp_index(v414, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t74 = o0_f32[i0 + 192];
            const f32 t75 = o1024_f32[i0 + 192];
            const f32 t76 = t74 + t75;
            const f32 t77 = ck_logistic(t76);
            const f32 t78 = o0_f32[i0 + 64];
            const f32 t79 = o1024_f32[i0 + 64];
            const f32 t80 = t78 + t79;
            const f32 t81 = ck_logistic(t80);
            const f32 t82 = d418[i0];
            const f32 t83 = t81 * t82;
            const f32 t84 = o0_f32[i0];
            const f32 t85 = o1024_f32[i0];
            const f32 t86 = t84 + t85;
            const f32 t87 = ck_logistic(t86);
            const f32 t88 = o0_f32[i0 + 128];
            const f32 t89 = o1024_f32[i0 + 128];
            const f32 t90 = t88 + t89;
            const f32 t91 = ck_tanh(t90);
            const f32 t92 = t87 * t91;
            const f32 t93 = t83 + t92;
            const f32 t94 = ck_tanh(t93);
            const f32 t95 = t77 * t94;
            w10240_f32[n72 + i0] = t95;
            w8704_f32[n73 + i0] = t93;
          }
        }
      }
    }
    for (i64 v451 = unit->index; v451 < 2; v451 += unit->count) {
      if (v449 <= 0) {
        {
          const i64 t96 = v451 * i64(64LL);
          v456 = t96;
        }
        const f32* const d458 = r3 + ck_clamp_index(v456, 64) * 1;
        {
          const i64 n97 = ck_clamp_index(v447, 3);
          const i64 n98 = ck_clamp_index(v456, 64);
          const i64 n99 = ck_clamp_index(v456, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t100 = d458[i0];
            r0[128 * n97 + n98 + i0] = t100;
            w10752_f32[n99 + i0] = t100;
          }
        }
      }
      else {
        {
          const i64 t101 = v451 * i64(64LL);
          v463 = t101;
        }
        const f32* const d465 = p5 + ck_clamp_index(v463, 64) * 1;
        const f32* const d466 = p6 + ck_clamp_index(v463, 64) * 1;
        const f32* const d467 = w9216_f32 + ck_clamp_index(v463, 64) * 1;
        outlined1(r2, d465, o0_f32);
        outlined1(r3, d466, o1024_f32);
        {
          const i64 n102 = ck_clamp_index(v447, 3);
          const i64 n103 = ck_clamp_index(v463, 64);
          const i64 n104 = ck_clamp_index(v463, 64);
          const i64 n105 = ck_clamp_index(v463, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t106 = o0_f32[i0 + 192];
            const f32 t107 = o1024_f32[i0 + 192];
            const f32 t108 = t106 + t107;
            const f32 t109 = ck_logistic(t108);
            const f32 t110 = o0_f32[i0 + 64];
            const f32 t111 = o1024_f32[i0 + 64];
            const f32 t112 = t110 + t111;
            const f32 t113 = ck_logistic(t112);
            const f32 t114 = d467[i0];
            const f32 t115 = t113 * t114;
            const f32 t116 = o0_f32[i0];
            const f32 t117 = o1024_f32[i0];
            const f32 t118 = t116 + t117;
            const f32 t119 = ck_logistic(t118);
            const f32 t120 = o0_f32[i0 + 128];
            const f32 t121 = o1024_f32[i0 + 128];
            const f32 t122 = t120 + t121;
            const f32 t123 = ck_tanh(t122);
            const f32 t124 = t119 * t123;
            const f32 t125 = t115 + t124;
            const f32 t126 = ck_tanh(t125);
            const f32 t127 = t109 * t126;
            o2048_f32[i0] = t127;
            r0[128 * n102 + n103 + i0] = t127;
            w10752_f32[n104 + i0] = t127;
            w9216_f32[n105 + i0] = t125;
          }
        }
      }
    }
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    for (i64 v506 = unit->index; v506 < 2; v506 += unit->count) {
      if (v504 <= 0) {
        {
          const i64 t128 = v506 * i64(64LL);
          v510 = t128;
        }
        const f32* const d512 = w9728_f32 + ck_clamp_index(v510, 64) * 1;
        {
          const i64 n129 = ck_clamp_index(v510, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t130 = d512[i0];
            r1[n129 + i0] = t130;
          }
        }
      }
      else {
        {
          const i64 t131 = v506 * i64(64LL);
          v515 = t131;
        }
        const f32* const d517 = p2 + ck_clamp_index(v515, 64) * 1;
        const f32* const d518 = w8192_f32 + ck_clamp_index(v515, 64) * 1;
        const f32* const d519 = w0_f32 + ck_clamp_index(v502, 3) * 512 + ck_clamp_index(v515, 64) * 1;
        outlined1(w9728_f32, d517, o0_f32);
        {
          const i64 n132 = ck_clamp_index(v515, 64);
          const i64 n133 = ck_clamp_index(v515, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t134 = d519[i0 + 384];
            const f32 t135 = o0_f32[i0 + 192];
            const f32 t136 = t134 + t135;
            const f32 t137 = ck_logistic(t136);
            const f32 t138 = d519[i0 + 128];
            const f32 t139 = o0_f32[i0 + 64];
            const f32 t140 = t138 + t139;
            const f32 t141 = ck_logistic(t140);
            const f32 t142 = d518[i0];
            const f32 t143 = t141 * t142;
            const f32 t144 = d519[i0];
            const f32 t145 = o0_f32[i0];
            const f32 t146 = t144 + t145;
            const f32 t147 = ck_logistic(t146);
            const f32 t148 = d519[i0 + 256];
            const f32 t149 = o0_f32[i0 + 128];
            const f32 t150 = t148 + t149;
            const f32 t151 = ck_tanh(t150);
            const f32 t152 = t147 * t151;
            const f32 t153 = t143 + t152;
            const f32 t154 = ck_tanh(t153);
            const f32 t155 = t137 * t154;
            r1[n132 + i0] = t155;
            w8192_f32[n133 + i0] = t153;
          }
        }
      }
    }
    for (i64 v552 = unit->index; v552 < 2; v552 += unit->count) {
      if (v550 <= 0) {
        {
          const i64 t156 = v552 * i64(64LL);
          v556 = t156;
        }
        const f32* const d558 = w10240_f32 + ck_clamp_index(v556, 64) * 1;
        {
          const i64 n157 = ck_clamp_index(v556, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t158 = d558[i0];
            r2[n157 + i0] = t158;
          }
        }
      }
      else {
        {
          const i64 t159 = v552 * i64(64LL);
          v561 = t159;
        }
        const f32* const d563 = p3 + ck_clamp_index(v561, 64) * 1;
        const f32* const d564 = p4 + ck_clamp_index(v561, 64) * 1;
        const f32* const d565 = w8704_f32 + ck_clamp_index(v561, 64) * 1;
        outlined1(w9728_f32, d563, o0_f32);
        outlined1(w10240_f32, d564, o1024_f32);
        {
          const i64 n160 = ck_clamp_index(v561, 64);
          const i64 n161 = ck_clamp_index(v561, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t162 = o0_f32[i0 + 192];
            const f32 t163 = o1024_f32[i0 + 192];
            const f32 t164 = t162 + t163;
            const f32 t165 = ck_logistic(t164);
            const f32 t166 = o0_f32[i0 + 64];
            const f32 t167 = o1024_f32[i0 + 64];
            const f32 t168 = t166 + t167;
            const f32 t169 = ck_logistic(t168);
            const f32 t170 = d565[i0];
            const f32 t171 = t169 * t170;
            const f32 t172 = o0_f32[i0];
            const f32 t173 = o1024_f32[i0];
            const f32 t174 = t172 + t173;
            const f32 t175 = ck_logistic(t174);
            const f32 t176 = o0_f32[i0 + 128];
            const f32 t177 = o1024_f32[i0 + 128];
            const f32 t178 = t176 + t177;
            const f32 t179 = ck_tanh(t178);
            const f32 t180 = t175 * t179;
            const f32 t181 = t171 + t180;
            const f32 t182 = ck_tanh(t181);
            const f32 t183 = t165 * t182;
            r2[n160 + i0] = t183;
            w8704_f32[n161 + i0] = t181;
          }
        }
      }
    }
    for (i64 v598 = unit->index; v598 < 2; v598 += unit->count) {
      if (v596 <= 0) {
        {
          const i64 t184 = v598 * i64(64LL);
          v603 = t184;
        }
        const f32* const d605 = w10752_f32 + ck_clamp_index(v603, 64) * 1;
        {
          const i64 n185 = ck_clamp_index(v594, 3);
          const i64 n186 = ck_clamp_index(v603, 64);
          const i64 n187 = ck_clamp_index(v603, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t188 = d605[i0];
            r0[128 * n185 + n186 + i0] = t188;
            r3[n187 + i0] = t188;
          }
        }
      }
      else {
        {
          const i64 t189 = v598 * i64(64LL);
          v610 = t189;
        }
        const f32* const d612 = p5 + ck_clamp_index(v610, 64) * 1;
        const f32* const d613 = p6 + ck_clamp_index(v610, 64) * 1;
        const f32* const d614 = w9216_f32 + ck_clamp_index(v610, 64) * 1;
        outlined1(w10240_f32, d612, o0_f32);
        outlined1(w10752_f32, d613, o1024_f32);
        {
          const i64 n190 = ck_clamp_index(v594, 3);
          const i64 n191 = ck_clamp_index(v610, 64);
          const i64 n192 = ck_clamp_index(v610, 64);
          const i64 n193 = ck_clamp_index(v610, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t194 = o0_f32[i0 + 192];
            const f32 t195 = o1024_f32[i0 + 192];
            const f32 t196 = t194 + t195;
            const f32 t197 = ck_logistic(t196);
            const f32 t198 = o0_f32[i0 + 64];
            const f32 t199 = o1024_f32[i0 + 64];
            const f32 t200 = t198 + t199;
            const f32 t201 = ck_logistic(t200);
            const f32 t202 = d614[i0];
            const f32 t203 = t201 * t202;
            const f32 t204 = o0_f32[i0];
            const f32 t205 = o1024_f32[i0];
            const f32 t206 = t204 + t205;
            const f32 t207 = ck_logistic(t206);
            const f32 t208 = o0_f32[i0 + 128];
            const f32 t209 = o1024_f32[i0 + 128];
            const f32 t210 = t208 + t209;
            const f32 t211 = ck_tanh(t210);
            const f32 t212 = t207 * t211;
            const f32 t213 = t203 + t212;
            const f32 t214 = ck_tanh(t213);
            const f32 t215 = t197 * t214;
            o2048_f32[i0] = t215;
            r0[128 * n190 + n191 + i0] = t215;
            r3[n192 + i0] = t215;
            w9216_f32[n193 + i0] = t213;
          }
        }
      }
    }
  }
  return 0;
}
#endif
