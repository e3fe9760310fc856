# UCFS_CUDNN
# After UCFS_CUDA, whose flags it adds to.  Only cuDNN's header is needed, of 9.8
# or later: the library is loaded when there is attention that it can compute,
# see gpu/cudnn_api.c.  --with-cudnn=DIR looks for both in DIR/include and
# DIR/lib, as Python's package of cuDNN has them.  Sets have_cudnn (text for the
# summary).
AC_DEFUN([UCFS_CUDNN],
[AC_ARG_WITH([cudnn],
   [AS_HELP_STRING([--with-cudnn@<:@=DIR@:>@],
      [compute attention by cuDNN where it can
       @<:@default=if CUDA is used and cuDNN 9.8 or later is found@:>@])],
   [], [with_cudnn=check])

have_cudnn="no (attention is by uctrain's own kernels)"
AS_IF([test "x$with_cudnn" != xno && test "x$ucfs_use_cuda" = xyes],
  [ucfs_cudnn_cflags=
   ucfs_cudnn_libs=
   AS_CASE([$with_cudnn], [yes|check], [],
     [AS_IF([test ! -e "$with_cudnn/include/cudnn.h"],
        [AC_MSG_ERROR([--with-cudnn: there is no $with_cudnn/include/cudnn.h])])
      ucfs_cudnn_cflags="-isystem $with_cudnn/include"
      ucfs_cudnn_libs="-Wl,-rpath,$with_cudnn/lib"])
   ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS $ucfs_cudnn_cflags $CUDA_CFLAGS"
   AC_CHECK_DECL([CUDNN_ATTR_DEVICEPROP_HANDLE],
     [have_cudnn="cudnn.h"
      CUDA_CFLAGS="$ucfs_cudnn_cflags $CUDA_CFLAGS"
      CUDA_LIBS="$CUDA_LIBS $ucfs_cudnn_libs"], [],
     [[#include <cudnn.h>]])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
AS_CASE([$have_cudnn], [no*], [ucfs_use_cudnn=no], [ucfs_use_cudnn=yes])
AS_CASE([$with_cudnn], [no|check], [],
  [AS_IF([test "x$ucfs_use_cudnn" = xno],
     [AC_MSG_ERROR([--with-cudnn was given; it needs CUDA and cudnn.h of 9.8 or later])])])
AM_CONDITIONAL([HAVE_CUDNN], [test "x$ucfs_use_cudnn" = xyes])])
