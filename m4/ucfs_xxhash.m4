# UCFS_XXHASH_DISPATCH
# Does libxxhash choose among the vectors of x86 processors when it is called?
# Debian's does; it is an option of its build.
AC_DEFUN([UCFS_XXHASH_DISPATCH],
[ucfs_save_LIBS=$LIBS
LIBS="$LIBS $XXHASH_LIBS"
AC_CHECK_HEADER([xxh_x86dispatch.h],
  [AC_CHECK_FUNC([XXH3_64bits_dispatch],
    [AC_DEFINE([HAVE_XXH_DISPATCH], [1], [xxh_x86dispatch.h can be used])])])
LIBS=$ucfs_save_LIBS])
