# UCFS_CUFILE
# After UCFS_CUDA.  Only its header is needed: the library is loaded when a
# checkpoint is, see gpu/cufile_api.c.  Sets have_cufile (text for the summary).
AC_DEFUN([UCFS_CUFILE],
[AC_ARG_WITH([cufile],
   [AS_HELP_STRING([--with-cufile],
      [read files straight into a GPU's memory, by GPUDirect Storage
       @<:@default=if CUDA is used and has cuFile@:>@])],
   [], [with_cufile=check])

have_cufile="no (files are read through the host's memory)"
AS_IF([test "x$with_cufile" != xno && test "x$ucfs_use_cuda" = xyes],
  [ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
   AC_CHECK_HEADER([cufile.h], [have_cufile="cufile.h"])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
AS_CASE([$have_cufile], [no*], [ucfs_use_cufile=no], [ucfs_use_cufile=yes])
AS_IF([test "x$with_cufile" = xyes && test "x$ucfs_use_cufile" = xno],
  [AC_MSG_ERROR([--with-cufile was given; it needs CUDA with cufile.h])])
AM_CONDITIONAL([HAVE_CUFILE], [test "x$ucfs_use_cufile" = xyes])])
