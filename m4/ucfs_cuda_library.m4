# UCFS_CUDA_LIBRARY(NAME, DECLARATION, HEADER, USE, WITHOUT)
# After UCFS_CUDA, to whose flags it adds: a library beside CUDA that uctrain
# loads when it has USE for it, and compiles without.  Only HEADER is needed, if
# it has DECLARATION.  --with-NAME=DIR looks for header and library in
# DIR/include and DIR/lib, as Python's packages of them have it.  Sets have_NAME
# (text for the summary, WITHOUT if it is not there) and HAVE_NAME.
AC_DEFUN([UCFS_CUDA_LIBRARY],
[AC_ARG_WITH([$1],
   [AS_HELP_STRING([--with-$1@<:@=DIR@:>@],
      [$4 @<:@default=if CUDA is used and $3 found@:>@])],
   [], [with_$1=check])

have_$1="no ($5)"
AS_IF([test "x$with_$1" != xno && test "x$ucfs_use_cuda" = xyes],
  [ucfs_library_cflags=
   ucfs_library_dir=
   AS_CASE([$with_$1], [yes|check], [],
     [AS_IF([test ! -e "$with_$1/include/$3"],
        [AC_MSG_ERROR([--with-$1: there is no $with_$1/include/$3])])
      ucfs_library_cflags="-isystem $with_$1/include"
      ucfs_library_dir=":$with_$1/lib"])
   ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS $ucfs_library_cflags $CUDA_CFLAGS"
   AC_CHECK_DECL([$2],
     [have_$1=$3
      CUDA_CFLAGS="$ucfs_library_cflags $CUDA_CFLAGS"
      CUDA_DIRS="$CUDA_DIRS$ucfs_library_dir"], [],
     [[#include <$3>]])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
AS_CASE([$have_$1], [no*],
  [ucfs_use_library=no
   AS_CASE([$with_$1], [no|check], [],
     [AC_MSG_ERROR([--with-$1 was given; it needs CUDA, and $3 with $2])])],
  [ucfs_use_library=yes])
AM_CONDITIONAL(m4_toupper([HAVE_$1]), [test "x$ucfs_use_library" = xyes])])
