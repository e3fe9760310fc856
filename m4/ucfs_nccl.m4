# UCFS_NCCL
# After UCFS_CUDA.  Only its header is needed: the library is loaded when
# several ranks have a device each, see gpu/nccl_api.c.  Sets have_nccl (text
# for the summary).
AC_DEFUN([UCFS_NCCL],
[have_nccl="no (ranks talk through their hosts)"
AS_IF([test "x$ucfs_use_cuda" = xyes],
  [ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
   AC_CHECK_HEADER([nccl.h], [have_nccl="nccl.h"])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
AS_CASE([$have_nccl], [no*], [ucfs_use_nccl=no], [ucfs_use_nccl=yes])
AM_CONDITIONAL([HAVE_NCCL], [test "x$ucfs_use_nccl" = xyes])])
