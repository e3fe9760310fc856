# UCFS_CUDNN
# After UCFS_CUDA.  Only its header is needed, of 9.8 or later: the library is
# loaded when there is attention that it can compute, see gpu/cudnn_api.c.  Sets
# have_cudnn (text for the summary).
AC_DEFUN([UCFS_CUDNN],
[AC_ARG_WITH([cudnn],
   [AS_HELP_STRING([--with-cudnn],
      [compute attention by cuDNN where it can
       @<:@default=if CUDA is used and has cuDNN 9.8 or later@:>@])],
   [], [with_cudnn=check])

have_cudnn="no (attention is by uctrain's own kernels)"
AS_IF([test "x$with_cudnn" != xno && test "x$ucfs_use_cuda" = xyes],
  [ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
   AC_CHECK_DECL([CUDNN_ATTR_DEVICEPROP_HANDLE], [have_cudnn="cudnn.h"], [],
     [[#include <cudnn.h>]])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
AS_CASE([$have_cudnn], [no*], [ucfs_use_cudnn=no], [ucfs_use_cudnn=yes])
AS_IF([test "x$with_cudnn" = xyes && test "x$ucfs_use_cudnn" = xno],
  [AC_MSG_ERROR([--with-cudnn was given; it needs CUDA with cudnn.h of 9.8 or later])])
AM_CONDITIONAL([HAVE_CUDNN], [test "x$ucfs_use_cudnn" = xyes])])
