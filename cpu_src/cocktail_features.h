// The processor features that a program was compiled for, by name. The build lists them in CK_FEATURES. The
// runtime refuses programs that need what the processor lacks: they would stop at an illegal instruction, or
// compute wrong results (a processor without LZCNT executes it as another instruction).
#ifndef COCKTAIL_FEATURES_H
#define COCKTAIL_FEATURES_H

#ifndef CK_FEATURES
#define CK_FEATURES unknown
#endif

#define CK_TEXT_OF(...) #__VA_ARGS__
#define CK_TEXT(...) CK_TEXT_OF(__VA_ARGS__)

// Read by the runtime before it calls the program.
CK_EXPORT const char ck_features[];
#if CK_IN_PART(0)
const char ck_features[] __attribute__((used)) = CK_TEXT(CK_FEATURES);
#endif

#endif  // COCKTAIL_FEATURES_H
