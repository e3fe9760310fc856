# UCFS_CUDA
# --with-cuda[=DIR] looks for nvcc in DIR/bin, PATH and the usual place;
# without the option it is used when found.  Sets NVCC, NVCC_ARCHS and
# have_cuda (text for the summary).
AC_DEFUN([UCFS_CUDA],
[AC_ARG_WITH([cuda],
   [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
      [build the trainer's CUDA backend @<:@default=if nvcc is found@:>@])],
   [], [with_cuda=check])
AC_ARG_WITH([cuda-arch],
   [AS_HELP_STRING([--with-cuda-arch=LIST],
      [compute capabilities to compile for @<:@default="80 90"@:>@])],
   [], [with_cuda_arch="80 90"])
AC_ARG_VAR([NVCC], [CUDA compiler])

have_cuda=no
AS_IF([test "x$with_cuda" != xno],
  [AS_CASE([$with_cuda],
     [yes|check], [ucfs_cuda_path="$PATH$PATH_SEPARATOR/usr/local/cuda/bin"],
     [ucfs_cuda_path="$with_cuda/bin"])
   AC_PATH_PROG([NVCC], [nvcc], [], [$ucfs_cuda_path])
   AS_IF([test -n "$NVCC"],
     [ucfs_cuda_release=`"$NVCC" --version 2>/dev/null |
        sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`
      have_cuda="$NVCC $ucfs_cuda_release (sm $with_cuda_arch)"],
     [test "x$with_cuda" != xcheck],
     [AC_MSG_ERROR([--with-cuda was given, but there is no nvcc in $ucfs_cuda_path])])])
AC_SUBST([NVCC_ARCHS], [$with_cuda_arch])
AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" != xno])])
