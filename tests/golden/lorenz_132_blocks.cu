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
#define CK_SIZES 1
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  const i32 size0 = i32(unit->sizes[0]);
  CK_ASSUME(size0 >= 9);
  const f32* const p0 = (const f32*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  f32 v231;
  f32 v232;
  f32 v234;
  f32 v235;
  f32 v237;
  f32 v238;
  f32 v239;
  f32 v240;
  f32 v241;
  f32 v243;
  f32 v245;
  f32 v247;
  f32 v248;
  f32 v249;
  f32 v250;
  f32 v252;
  f32 v253;
  f32 v255;
  f32 v256;
  f32 v257;
  f32 v258;
  f32 v259;
  f32 v260;
  f32 v261;
  f32 v262;
  f32 v263;
  f32 v264;
  f32 v265;
  f32 v266;
  f32 v267;
  f32 v268;
  f32 v269;
  f32 v270;
  f32 v271;
  f32 v272;
  f32 v273;
  f32 v274;
  f32 v275;
  f32 v276;
  f32 v277;
  f32 v278;
  f32 v279;
  f32 v280;
  f32 v281;
  f32 v282;
  f32 v284;
  f32 v285;
  f32 v286;
  f32 v287;
  f32 v288;
  f32 v289;
  f32 v290;
  f32 v291;
  f32 v292;
  f32 v293;
  f32 v294;
  f32 v295;
  f32 v296;
  f32 v297;
  f32 v299;
  f32 v300;
  f32 v301;
  f32 v302;
  f32 v303;
  f32 v304;
  f32 v305;
  f32 v306;
  f32 v307;
  f32 v308;
  f32 v309;
  f32 v310;
  f32 v311;
  f32 v312;
  f32 v313;
  f32 v315;
  f32 v316;
  f32 v317;
  f32 v318;
  f32 v319;
  f32 v320;
  f32 v324;
  f32 v326;
  f32 v328;
  for (i32 v125 = ck_first_trip(unit); v125 < 100000; v125 += ck_next_trip(unit)) {
    {
      const i32 n1 = ck_clamp_index(i64(v125), 99999);
      const i32 n2 = ck_clamp_index(i64(0LL), 2);
      const f32 t3 = p0[3 * n1 + n2];
      v231 = t3;
      v232 = v231;
      const i32 n4 = ck_clamp_index(i64(v125), 99999);
      const i32 n5 = ck_clamp_index(i64(1LL), 2);
      const f32 t6 = p0[3 * n4 + n5];
      v234 = t6;
      v235 = v234;
      const i32 n7 = ck_clamp_index(i64(v125), 99999);
      const i32 n8 = ck_clamp_index(i64(2LL), 2);
      const f32 t9 = p0[3 * n7 + n8];
      v237 = t9;
      v238 = v237;
    }
    v239 = v232;
    v240 = v235;
    v241 = v238;
    for (i32 v242 = 0; v242 < size0; ++v242) {
      {
        const f32 t10 = v240 - v239;
        v243 = t10;
        const f32 t11 = 10.0f * v243;
        v245 = t11;
        const f32 t12 = 28.0f - v241;
        v247 = t12;
        const f32 t13 = v239 * v247;
        v248 = t13;
        const f32 t14 = v248 - v240;
        v249 = t14;
        const f32 t15 = v239 * v240;
        v250 = t15;
        const f32 t16 = 2.6666667461395264f * v241;
        v252 = t16;
        const f32 t17 = v250 - v252;
        v253 = t17;
        const f32 t18 = 0.004999999888241291f * v245;
        v255 = t18;
        const f32 t19 = 0.004999999888241291f * v249;
        v256 = t19;
        const f32 t20 = 0.004999999888241291f * v253;
        v257 = t20;
        const f32 t21 = v239 + v255;
        v258 = t21;
        const f32 t22 = v240 + v256;
        v259 = t22;
        const f32 t23 = v241 + v257;
        v260 = t23;
        const f32 t24 = v259 - v258;
        v261 = t24;
        const f32 t25 = 10.0f * v261;
        v262 = t25;
        const f32 t26 = 28.0f - v260;
        v263 = t26;
        const f32 t27 = v258 * v263;
        v264 = t27;
        const f32 t28 = v264 - v259;
        v265 = t28;
        const f32 t29 = v258 * v259;
        v266 = t29;
        const f32 t30 = 2.6666667461395264f * v260;
        v267 = t30;
        const f32 t31 = v266 - v267;
        v268 = t31;
        const f32 t32 = 0.004999999888241291f * v262;
        v269 = t32;
        const f32 t33 = 0.004999999888241291f * v265;
        v270 = t33;
        const f32 t34 = 0.004999999888241291f * v268;
        v271 = t34;
        const f32 t35 = v239 + v269;
        v272 = t35;
        const f32 t36 = v240 + v270;
        v273 = t36;
        const f32 t37 = v241 + v271;
        v274 = t37;
        const f32 t38 = v273 - v272;
        v275 = t38;
        const f32 t39 = 10.0f * v275;
        v276 = t39;
        const f32 t40 = 28.0f - v274;
        v277 = t40;
        const f32 t41 = v272 * v277;
        v278 = t41;
        const f32 t42 = v278 - v273;
        v279 = t42;
        const f32 t43 = v272 * v273;
        v280 = t43;
        const f32 t44 = 2.6666667461395264f * v274;
        v281 = t44;
        const f32 t45 = v280 - v281;
        v282 = t45;
        const f32 t46 = 0.009999999776482582f * v276;
        v284 = t46;
        const f32 t47 = 0.009999999776482582f * v279;
        v285 = t47;
        const f32 t48 = 0.009999999776482582f * v282;
        v286 = t48;
        const f32 t49 = v239 + v284;
        v287 = t49;
        const f32 t50 = v240 + v285;
        v288 = t50;
        const f32 t51 = v241 + v286;
        v289 = t51;
        const f32 t52 = v288 - v287;
        v290 = t52;
        const f32 t53 = 10.0f * v290;
        v291 = t53;
        const f32 t54 = 28.0f - v289;
        v292 = t54;
        const f32 t55 = v287 * v292;
        v293 = t55;
        const f32 t56 = v293 - v288;
        v294 = t56;
        const f32 t57 = v287 * v288;
        v295 = t57;
        const f32 t58 = 2.6666667461395264f * v289;
        v296 = t58;
        const f32 t59 = v295 - v296;
        v297 = t59;
        const f32 t60 = 2.0f * v262;
        v299 = t60;
        const f32 t61 = 2.0f * v265;
        v300 = t61;
        const f32 t62 = 2.0f * v268;
        v301 = t62;
        const f32 t63 = 2.0f * v276;
        v302 = t63;
        const f32 t64 = 2.0f * v279;
        v303 = t64;
        const f32 t65 = 2.0f * v282;
        v304 = t65;
        const f32 t66 = v299 + v302;
        v305 = t66;
        const f32 t67 = v300 + v303;
        v306 = t67;
        const f32 t68 = v301 + v304;
        v307 = t68;
        const f32 t69 = v245 + v291;
        v308 = t69;
        const f32 t70 = v249 + v294;
        v309 = t70;
        const f32 t71 = v253 + v297;
        v310 = t71;
        const f32 t72 = v305 + v308;
        v311 = t72;
        const f32 t73 = v306 + v309;
        v312 = t73;
        const f32 t74 = v307 + v310;
        v313 = t74;
        const f32 t75 = 0.0016666667070239782f * v311;
        v315 = t75;
        const f32 t76 = 0.0016666667070239782f * v312;
        v316 = t76;
        const f32 t77 = 0.0016666667070239782f * v313;
        v317 = t77;
        const f32 t78 = v239 + v315;
        v318 = t78;
        const f32 t79 = v240 + v316;
        v319 = t79;
        const f32 t80 = v241 + v317;
        v320 = t80;
      }
      v239 = v318;
      v240 = v319;
      v241 = v320;
    }
    {
      v324 = v239;
      const i32 n81 = ck_clamp_index(i64(v125), 99999);
      const i32 n82 = ck_clamp_index(i64(0LL), 2);
      r0[3 * n81 + n82] = v324;
      v326 = v240;
    }
    {
      const i32 n83 = ck_clamp_index(i64(v125), 99999);
      const i32 n84 = ck_clamp_index(i64(1LL), 2);
      r0[3 * n83 + n84] = v326;
      v328 = v241;
    }
    {
      const i32 n85 = ck_clamp_index(i64(v125), 99999);
      const i32 n86 = ck_clamp_index(i64(2LL), 2);
      r0[3 * n85 + n86] = v328;
    }
  }
}
CK_ENTRIES
