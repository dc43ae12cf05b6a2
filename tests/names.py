"""Names that a careless compiler would mistake for code, for a path, or for a command of a terminal."""

from __future__ import annotations

NAMES = {
    "newline": "f\nint evil = *(int*)0;",
    "constructor": 'f\nextern "C" int puts(const char*); __attribute__((constructor)) static void e() '
    '{ puts("INJECTED"); }\n//',
    "backslash": "f\\",
    "end of a comment": "*/ int evil; /*",
    "trigraph": "f??/",
    "carriage return": "f\rint evil;",
    "separators": "f\x0bint a;\x0cint b;\x85int c;\u2028int d;",
    "not utf-8": "f\udcff",
    "null": "f\0g",
    "long": "f" * 10_000,
    "escapes": "\x1b[2J\x1b]0;title\x07f",
    "right to left": "\u202ef",
    "path": "../../f/../.",
    "braces": "{f} %s %n $(f) `f` \"f' f",
    "empty": "",
}
