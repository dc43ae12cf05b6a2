// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_units.h"
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 2;

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
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
    {
      const i64 n2 = ck_clamp_index(v158, 64);
      for (i64 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 64, 128, 128, 1, 512, 1, 512, 1>(1, p0, 0, d160 + 128 * i0, 0, (w0_f32 + n2) + 128 * i0, 0);
      }
    }
  }
  for (i64 v294 = unit->index; v294 < 2; v294 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t3 = v294 * i64(64LL);
      v304 = t3;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n4 = ck_clamp_index(v304, 64);
      const i64 n5 = ck_clamp_index(v304, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t6 = o256_f32[i0];
        r1[n4 + i0] = t6;
        w8192_f32[n5 + i0] = t6;
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
      const i64 t7 = v309 * i64(64LL);
      v319 = t7;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n8 = ck_clamp_index(v319, 64);
      const i64 n9 = ck_clamp_index(v319, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t10 = o256_f32[i0];
        r2[n8 + i0] = t10;
        w8704_f32[n9 + i0] = t10;
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
      const i64 t11 = v325 * i64(64LL);
      v339 = t11;
    }
    {
      __builtin_memcpy(o2048_f32, o1024_f32, 256);
    }
    {
      __builtin_memcpy(o1024_f32, o0_f32, 1024);
    }
    {
      const i64 n12 = ck_clamp_index(v339, 64);
      const i64 n13 = ck_clamp_index(v339, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t14 = o2048_f32[i0];
        r3[n12 + i0] = t14;
        w9216_f32[n13 + i0] = t14;
      }
    }
    {
      const i64 n15 = ck_clamp_index(v339, 64);
      for (i64 i0 = 0; i0 < 4; ++i0) {
        CK_LANES
        for (i64 i1 = 0; i1 < 64; ++i1) {
          const f32 t16 = o1024_f32[64 * i0 + i1];
          r0[n15 + 128 * i0 + i1] = t16;
        }
      }
    }
  }
  for (i64 v343 = 0; v343 < 3; ++v343) {
    ck_arrive(unit);
    {
      const i64 t17 = v343 * i64(2LL);
      v345 = t17;
    }
    {
      const i64 t18 = ck_clamp(i64(0LL), v345, i64(3LL));
      v355 = t18;
      const bool t19 = v345 == v355;
      v356 = t19;
      const i32 t20 = ck_convert<i32>(v356);
      v357 = t20;
    }
    if (ck_wait(unit)) return 0;
    for (i64 v359 = unit->index; v359 < 2; v359 += unit->count) {
      if (v357 <= 0) {
        {
          const i64 t21 = v359 * i64(64LL);
          v363 = t21;
        }
        const f32* const d365 = r1 + ck_clamp_index(v363, 64) * 1;
        {
          const i64 n22 = ck_clamp_index(v363, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t23 = d365[i0];
            w9728_f32[n22 + i0] = t23;
          }
        }
      }
      else {
        {
          const i64 t24 = v359 * i64(64LL);
          v368 = t24;
        }
        const f32* const d370 = p2 + ck_clamp_index(v368, 64) * 1;
        const f32* const d371 = w8192_f32 + ck_clamp_index(v368, 64) * 1;
        const f32* const d372 = w0_f32 + ck_clamp_index(v355, 3) * 512 + ck_clamp_index(v368, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r1, 0, d370 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n25 = ck_clamp_index(v368, 64);
          const i64 n26 = ck_clamp_index(v368, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t27 = d372[i0 + 384];
            const f32 t28 = o0_f32[i0 + 192];
            const f32 t29 = t27 + t28;
            const f32 t30 = ck_logistic(t29);
            const f32 t31 = d372[i0 + 128];
            const f32 t32 = o0_f32[i0 + 64];
            const f32 t33 = t31 + t32;
            const f32 t34 = ck_logistic(t33);
            const f32 t35 = d371[i0];
            const f32 t36 = t34 * t35;
            const f32 t37 = d372[i0];
            const f32 t38 = o0_f32[i0];
            const f32 t39 = t37 + t38;
            const f32 t40 = ck_logistic(t39);
            const f32 t41 = d372[i0 + 256];
            const f32 t42 = o0_f32[i0 + 128];
            const f32 t43 = t41 + t42;
            const f32 t44 = ck_tanh(t43);
            const f32 t45 = t40 * t44;
            const f32 t46 = t36 + t45;
            const f32 t47 = ck_tanh(t46);
            const f32 t48 = t30 * t47;
            w9728_f32[n25 + i0] = t48;
            w8192_f32[n26 + i0] = t46;
          }
        }
      }
    }
    {
      const i64 t49 = v345 - i64(1LL);
      v400 = t49;
      const i64 t50 = ck_clamp(i64(0LL), v400, i64(3LL));
      v401 = t50;
      const bool t51 = v400 == v401;
      v402 = t51;
      const i32 t52 = ck_convert<i32>(v402);
      v403 = t52;
      const i64 t53 = v345 - i64(2LL);
      v446 = t53;
      const i64 t54 = ck_clamp(i64(0LL), v446, i64(3LL));
      v447 = t54;
      const bool t55 = v446 == v447;
      v448 = t55;
      const i32 t56 = ck_convert<i32>(v448);
      v449 = t56;
      const i64 t57 = v345 + i64(1LL);
      v499 = t57;
      const i64 t58 = ck_clamp(i64(0LL), v499, i64(3LL));
      v502 = t58;
      const bool t59 = v499 == v502;
      v503 = t59;
      const i32 t60 = ck_convert<i32>(v503);
      v504 = t60;
      const i64 t61 = v499 - i64(1LL);
      v547 = t61;
      const i64 t62 = ck_clamp(i64(0LL), v547, i64(3LL));
      v548 = t62;
      const bool t63 = v547 == v548;
      v549 = t63;
      const i32 t64 = ck_convert<i32>(v549);
      v550 = t64;
      const i64 t65 = v499 - i64(2LL);
      v593 = t65;
      const i64 t66 = ck_clamp(i64(0LL), v593, i64(3LL));
      v594 = t66;
      const bool t67 = v593 == v594;
      v595 = t67;
      const i32 t68 = ck_convert<i32>(v595);
      v596 = t68;
    }
    for (i64 v405 = unit->index; v405 < 2; v405 += unit->count) {
      if (v403 <= 0) {
        {
          const i64 t69 = v405 * i64(64LL);
          v409 = t69;
        }
        const f32* const d411 = r2 + ck_clamp_index(v409, 64) * 1;
        {
          const i64 n70 = ck_clamp_index(v409, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t71 = d411[i0];
            w10240_f32[n70 + i0] = t71;
          }
        }
      }
      else {
        {
          const i64 t72 = v405 * i64(64LL);
          v414 = t72;
        }
        const f32* const d416 = p3 + ck_clamp_index(v414, 64) * 1;
        const f32* const d417 = p4 + ck_clamp_index(v414, 64) * 1;
        const f32* const d418 = w8704_f32 + ck_clamp_index(v414, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r1, 0, d416 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r2, 0, d417 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n73 = ck_clamp_index(v414, 64);
          const i64 n74 = ck_clamp_index(v414, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t75 = o0_f32[i0 + 192];
            const f32 t76 = o1024_f32[i0 + 192];
            const f32 t77 = t75 + t76;
            const f32 t78 = ck_logistic(t77);
            const f32 t79 = o0_f32[i0 + 64];
            const f32 t80 = o1024_f32[i0 + 64];
            const f32 t81 = t79 + t80;
            const f32 t82 = ck_logistic(t81);
            const f32 t83 = d418[i0];
            const f32 t84 = t82 * t83;
            const f32 t85 = o0_f32[i0];
            const f32 t86 = o1024_f32[i0];
            const f32 t87 = t85 + t86;
            const f32 t88 = ck_logistic(t87);
            const f32 t89 = o0_f32[i0 + 128];
            const f32 t90 = o1024_f32[i0 + 128];
            const f32 t91 = t89 + t90;
            const f32 t92 = ck_tanh(t91);
            const f32 t93 = t88 * t92;
            const f32 t94 = t84 + t93;
            const f32 t95 = ck_tanh(t94);
            const f32 t96 = t78 * t95;
            w10240_f32[n73 + i0] = t96;
            w8704_f32[n74 + i0] = t94;
          }
        }
      }
    }
    for (i64 v451 = unit->index; v451 < 2; v451 += unit->count) {
      if (v449 <= 0) {
        {
          const i64 t97 = v451 * i64(64LL);
          v456 = t97;
        }
        const f32* const d458 = r3 + ck_clamp_index(v456, 64) * 1;
        {
          const i64 n98 = ck_clamp_index(v447, 3);
          const i64 n99 = ck_clamp_index(v456, 64);
          const i64 n100 = ck_clamp_index(v456, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t101 = d458[i0];
            r0[128 * n98 + n99 + i0] = t101;
            w10752_f32[n100 + i0] = t101;
          }
        }
      }
      else {
        {
          const i64 t102 = v451 * i64(64LL);
          v463 = t102;
        }
        const f32* const d465 = p5 + ck_clamp_index(v463, 64) * 1;
        const f32* const d466 = p6 + ck_clamp_index(v463, 64) * 1;
        const f32* const d467 = w9216_f32 + ck_clamp_index(v463, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r2, 0, d465 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r3, 0, d466 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n103 = ck_clamp_index(v447, 3);
          const i64 n104 = ck_clamp_index(v463, 64);
          const i64 n105 = ck_clamp_index(v463, 64);
          const i64 n106 = ck_clamp_index(v463, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t107 = o0_f32[i0 + 192];
            const f32 t108 = o1024_f32[i0 + 192];
            const f32 t109 = t107 + t108;
            const f32 t110 = ck_logistic(t109);
            const f32 t111 = o0_f32[i0 + 64];
            const f32 t112 = o1024_f32[i0 + 64];
            const f32 t113 = t111 + t112;
            const f32 t114 = ck_logistic(t113);
            const f32 t115 = d467[i0];
            const f32 t116 = t114 * t115;
            const f32 t117 = o0_f32[i0];
            const f32 t118 = o1024_f32[i0];
            const f32 t119 = t117 + t118;
            const f32 t120 = ck_logistic(t119);
            const f32 t121 = o0_f32[i0 + 128];
            const f32 t122 = o1024_f32[i0 + 128];
            const f32 t123 = t121 + t122;
            const f32 t124 = ck_tanh(t123);
            const f32 t125 = t120 * t124;
            const f32 t126 = t116 + t125;
            const f32 t127 = ck_tanh(t126);
            const f32 t128 = t110 * t127;
            o2048_f32[i0] = t128;
            r0[128 * n103 + n104 + i0] = t128;
            w10752_f32[n105 + i0] = t128;
            w9216_f32[n106 + i0] = t126;
          }
        }
      }
    }
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    for (i64 v506 = unit->index; v506 < 2; v506 += unit->count) {
      if (v504 <= 0) {
        {
          const i64 t129 = v506 * i64(64LL);
          v510 = t129;
        }
        const f32* const d512 = w9728_f32 + ck_clamp_index(v510, 64) * 1;
        {
          const i64 n130 = ck_clamp_index(v510, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t131 = d512[i0];
            r1[n130 + i0] = t131;
          }
        }
      }
      else {
        {
          const i64 t132 = v506 * i64(64LL);
          v515 = t132;
        }
        const f32* const d517 = p2 + ck_clamp_index(v515, 64) * 1;
        const f32* const d518 = w8192_f32 + ck_clamp_index(v515, 64) * 1;
        const f32* const d519 = w0_f32 + ck_clamp_index(v502, 3) * 512 + ck_clamp_index(v515, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w9728_f32, 0, d517 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n133 = ck_clamp_index(v515, 64);
          const i64 n134 = ck_clamp_index(v515, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t135 = d519[i0 + 384];
            const f32 t136 = o0_f32[i0 + 192];
            const f32 t137 = t135 + t136;
            const f32 t138 = ck_logistic(t137);
            const f32 t139 = d519[i0 + 128];
            const f32 t140 = o0_f32[i0 + 64];
            const f32 t141 = t139 + t140;
            const f32 t142 = ck_logistic(t141);
            const f32 t143 = d518[i0];
            const f32 t144 = t142 * t143;
            const f32 t145 = d519[i0];
            const f32 t146 = o0_f32[i0];
            const f32 t147 = t145 + t146;
            const f32 t148 = ck_logistic(t147);
            const f32 t149 = d519[i0 + 256];
            const f32 t150 = o0_f32[i0 + 128];
            const f32 t151 = t149 + t150;
            const f32 t152 = ck_tanh(t151);
            const f32 t153 = t148 * t152;
            const f32 t154 = t144 + t153;
            const f32 t155 = ck_tanh(t154);
            const f32 t156 = t138 * t155;
            r1[n133 + i0] = t156;
            w8192_f32[n134 + i0] = t154;
          }
        }
      }
    }
    for (i64 v552 = unit->index; v552 < 2; v552 += unit->count) {
      if (v550 <= 0) {
        {
          const i64 t157 = v552 * i64(64LL);
          v556 = t157;
        }
        const f32* const d558 = w10240_f32 + ck_clamp_index(v556, 64) * 1;
        {
          const i64 n158 = ck_clamp_index(v556, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t159 = d558[i0];
            r2[n158 + i0] = t159;
          }
        }
      }
      else {
        {
          const i64 t160 = v552 * i64(64LL);
          v561 = t160;
        }
        const f32* const d563 = p3 + ck_clamp_index(v561, 64) * 1;
        const f32* const d564 = p4 + ck_clamp_index(v561, 64) * 1;
        const f32* const d565 = w8704_f32 + ck_clamp_index(v561, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w9728_f32, 0, d563 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10240_f32, 0, d564 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n161 = ck_clamp_index(v561, 64);
          const i64 n162 = ck_clamp_index(v561, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t163 = o0_f32[i0 + 192];
            const f32 t164 = o1024_f32[i0 + 192];
            const f32 t165 = t163 + t164;
            const f32 t166 = ck_logistic(t165);
            const f32 t167 = o0_f32[i0 + 64];
            const f32 t168 = o1024_f32[i0 + 64];
            const f32 t169 = t167 + t168;
            const f32 t170 = ck_logistic(t169);
            const f32 t171 = d565[i0];
            const f32 t172 = t170 * t171;
            const f32 t173 = o0_f32[i0];
            const f32 t174 = o1024_f32[i0];
            const f32 t175 = t173 + t174;
            const f32 t176 = ck_logistic(t175);
            const f32 t177 = o0_f32[i0 + 128];
            const f32 t178 = o1024_f32[i0 + 128];
            const f32 t179 = t177 + t178;
            const f32 t180 = ck_tanh(t179);
            const f32 t181 = t176 * t180;
            const f32 t182 = t172 + t181;
            const f32 t183 = ck_tanh(t182);
            const f32 t184 = t166 * t183;
            r2[n161 + i0] = t184;
            w8704_f32[n162 + i0] = t182;
          }
        }
      }
    }
    for (i64 v598 = unit->index; v598 < 2; v598 += unit->count) {
      if (v596 <= 0) {
        {
          const i64 t185 = v598 * i64(64LL);
          v603 = t185;
        }
        const f32* const d605 = w10752_f32 + ck_clamp_index(v603, 64) * 1;
        {
          const i64 n186 = ck_clamp_index(v594, 3);
          const i64 n187 = ck_clamp_index(v603, 64);
          const i64 n188 = ck_clamp_index(v603, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t189 = d605[i0];
            r0[128 * n186 + n187 + i0] = t189;
            r3[n188 + i0] = t189;
          }
        }
      }
      else {
        {
          const i64 t190 = v598 * i64(64LL);
          v610 = t190;
        }
        const f32* const d612 = p5 + ck_clamp_index(v610, 64) * 1;
        const f32* const d613 = p6 + ck_clamp_index(v610, 64) * 1;
        const f32* const d614 = w9216_f32 + ck_clamp_index(v610, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10240_f32, 0, d612 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10752_f32, 0, d613 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n191 = ck_clamp_index(v594, 3);
          const i64 n192 = ck_clamp_index(v610, 64);
          const i64 n193 = ck_clamp_index(v610, 64);
          const i64 n194 = ck_clamp_index(v610, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t195 = o0_f32[i0 + 192];
            const f32 t196 = o1024_f32[i0 + 192];
            const f32 t197 = t195 + t196;
            const f32 t198 = ck_logistic(t197);
            const f32 t199 = o0_f32[i0 + 64];
            const f32 t200 = o1024_f32[i0 + 64];
            const f32 t201 = t199 + t200;
            const f32 t202 = ck_logistic(t201);
            const f32 t203 = d614[i0];
            const f32 t204 = t202 * t203;
            const f32 t205 = o0_f32[i0];
            const f32 t206 = o1024_f32[i0];
            const f32 t207 = t205 + t206;
            const f32 t208 = ck_logistic(t207);
            const f32 t209 = o0_f32[i0 + 128];
            const f32 t210 = o1024_f32[i0 + 128];
            const f32 t211 = t209 + t210;
            const f32 t212 = ck_tanh(t211);
            const f32 t213 = t208 * t212;
            const f32 t214 = t204 + t213;
            const f32 t215 = ck_tanh(t214);
            const f32 t216 = t198 * t215;
            o2048_f32[i0] = t216;
            r0[128 * n191 + n192 + i0] = t216;
            r3[n193 + i0] = t216;
            w9216_f32[n194 + i0] = t214;
          }
        }
      }
    }
  }
  return 0;
}
