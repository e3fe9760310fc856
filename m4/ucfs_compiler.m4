# Compiler switches: warnings, sanitizers, fuzzing.  They land in
# UCFS_CFLAGS and UCFS_LDFLAGS, never in CFLAGS, which is the user's.

# UCFS_WARNINGS
AC_DEFUN([UCFS_WARNINGS],
[AC_ARG_ENABLE([werror],
   [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
   [], [enable_werror=no])
UCFS_CFLAGS="$UCFS_CFLAGS -Wall -Wextra -Wshadow"
AS_IF([test "x$enable_werror" = xyes], [UCFS_CFLAGS="$UCFS_CFLAGS -Werror"])
AC_SUBST([UCFS_CFLAGS])
AC_SUBST([UCFS_LDFLAGS])])

# UCFS_ARG_SANITIZE
# Before AC_PROG_CC: sets a default for CFLAGS that keeps backtraces readable.
AC_DEFUN([UCFS_ARG_SANITIZE],
[AC_ARG_ENABLE([sanitize],
   [AS_HELP_STRING([--enable-sanitize=LIST],
      [build with sanitizers: "address,undefined" or "thread"])],
   [], [enable_sanitize=no])
AS_IF([test "x$enable_sanitize" = xyes], [enable_sanitize=address,undefined])
AC_SUBST([enable_sanitize])])

# UCFS_ARG_FUZZ
# Before AC_PROG_CC: libFuzzer comes with clang.  LIB_FUZZING_ENGINE may name
# another engine, as fuzzing services do.
AC_DEFUN([UCFS_ARG_FUZZ],
[AC_ARG_ENABLE([fuzz],
   [AS_HELP_STRING([--enable-fuzz], [build the libFuzzer targets (needs clang)])],
   [], [enable_fuzz=no])
AC_ARG_VAR([LIB_FUZZING_ENGINE], [what fuzz targets link with @<:@-fsanitize=fuzzer@:>@])
AS_IF([test "x$enable_fuzz" = xyes],
  [: ${CC=clang}
   : ${LIB_FUZZING_ENGINE=-fsanitize=fuzzer}
   AS_IF([test "x$enable_sanitize" = xno], [enable_sanitize=address,undefined])])
AM_CONDITIONAL([ENABLE_FUZZ], [test "x$enable_fuzz" = xyes])
AM_CONDITIONAL([ENABLE_SANITIZE], [test "x$enable_sanitize" != xno])
AS_IF([test "x$enable_sanitize" != xno], [: ${CFLAGS="-g -O1"}])])

# UCFS_CHECK_SANITIZE
# After AC_PROG_CC: the switches themselves, and a check that they link.
AC_DEFUN([UCFS_CHECK_SANITIZE],
[ucfs_san=
AS_IF([test "x$enable_sanitize" != xno],
  [ucfs_san="-fsanitize=$enable_sanitize -fno-sanitize-recover=all"
   ucfs_san="$ucfs_san -fno-omit-frame-pointer"])
AS_IF([test "x$enable_fuzz" = xyes],
  [ucfs_san="$ucfs_san -fsanitize=fuzzer-no-link"])
AS_IF([test -n "$ucfs_san"],
  [AC_MSG_CHECKING([whether $CC accepts $ucfs_san])
   ucfs_save_CFLAGS=$CFLAGS
   CFLAGS="$CFLAGS $ucfs_san"
   AC_LINK_IFELSE([AC_LANG_PROGRAM()],
     [AC_MSG_RESULT([yes])],
     [AC_MSG_RESULT([no])
      AC_MSG_ERROR([this compiler cannot build with these sanitizers])])
   CFLAGS=$ucfs_save_CFLAGS
   UCFS_CFLAGS="$UCFS_CFLAGS $ucfs_san"
   UCFS_LDFLAGS="$UCFS_LDFLAGS $ucfs_san"])])
