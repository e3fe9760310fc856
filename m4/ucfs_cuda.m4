# UCFS_CUDA
# --with-cuda[=DIR] looks for nvcc in DIR/bin, PATH and the usual place;
# without the option CUDA is used when all of it is found.  Sets NVCC,
# NVCC_FLAGS, CUDA_CFLAGS, CUDA_LIBS, CUDA_DIRS (where to load libraries from if
# the dynamic linker does not know) and have_cuda (text for the summary).
AC_DEFUN([UCFS_CUDA],
[AC_ARG_WITH([cuda],
   [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
      [build the trainer's CUDA backend @<:@default=if CUDA 12 or 13 is found@:>@])],
   [], [with_cuda=check])
AC_ARG_WITH([cuda-arch],
   [AS_HELP_STRING([--with-cuda-arch=LIST],
      [compute capabilities to compile for, 80 or later @<:@default="80 90"@:>@])],
   [], [with_cuda_arch="80 90"])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [more flags of the CUDA compiler])

have_cuda=no
AS_IF([test "x$with_cuda" != xno && test "x$ucfs_build_train" = xyes],
  [_UCFS_CUDA_FIND])
AS_CASE([$with_cuda], [no|check], [],
  [AS_CASE([$have_cuda], [no*],
     [AC_MSG_ERROR([--with-cuda was given, but CUDA cannot be used: $have_cuda])])])
AC_SUBST([CUDA_CFLAGS])
AC_SUBST([CUDA_LIBS])
AC_SUBST([CUDA_DIRS])
AC_SUBST([NVCC_FLAGS])
AS_CASE([$have_cuda], [no*], [ucfs_use_cuda=no], [ucfs_use_cuda=yes])
AM_CONDITIONAL([HAVE_CUDA], [test "x$ucfs_use_cuda" = xyes])])

AC_DEFUN([_UCFS_CUDA_FIND],
[AS_CASE([$with_cuda],
   [yes|check], [ucfs_cuda_path="$PATH$PATH_SEPARATOR/usr/local/cuda/bin"],
   [ucfs_cuda_path="$with_cuda/bin"])
AC_PATH_PROG([NVCC], [nvcc], [], [$ucfs_cuda_path])
AS_IF([test -z "$NVCC"],
  [have_cuda="no (no nvcc found)"],
  [ucfs_cuda_release=`"$NVCC" --version 2>/dev/null |
     sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`
   AS_CASE([$ucfs_cuda_release],
     [12.*|13.*], [_UCFS_CUDA_LIBRARIES],
     [have_cuda="no ($NVCC is of release ${ucfs_cuda_release:-unknown}, not 12 or 13)"])])])

# nvcc knows where its toolkit is; a link in /usr/bin does not say.
AC_DEFUN([_UCFS_CUDA_LIBRARIES],
[ucfs_cuda_top=`echo 'int x;' >conftest.cu &&
   "$NVCC" --dryrun -c conftest.cu -o conftest.o 2>&1 |
   sed -n 's/^#\$ TOP=//p'`
ucfs_cuda_libdir=
for ucfs_dir in lib64 lib targets/x86_64-linux/lib; do
  AS_IF([test -z "$ucfs_cuda_libdir" &&
         test -e "$ucfs_cuda_top/$ucfs_dir/libcudart_static.a"],
    [ucfs_cuda_libdir=`cd "$ucfs_cuda_top/$ucfs_dir" && pwd -P`])
done
# The runtime is linked in, so that the program starts where there is no CUDA;
# libraries beside it are loaded, see gpu/nvidia/dynlib.c.
CUDA_CFLAGS="-isystem $ucfs_cuda_top/include"
CUDA_DIRS=$ucfs_cuda_libdir
CUDA_LIBS="-L$ucfs_cuda_libdir -lcudart_static -ldl -lrt"
ucfs_save_CPPFLAGS=$CPPFLAGS
ucfs_save_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
LIBS="$CUDA_LIBS $LIBS"
AC_MSG_CHECKING([whether cudart and cublasLt can be used])
AC_LINK_IFELSE(
  [AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>
#include <cublasLt.h>]],
     [[return cudaGetLastError() + CUBLAS_VER_MAJOR;]])],
  [AC_MSG_RESULT([yes])
   _UCFS_CUDA_FLAGS
   have_cuda="$NVCC $ucfs_cuda_release (sm $with_cuda_arch)"],
  [AC_MSG_RESULT([no])
   have_cuda="no (cudart or cublasLt of $ucfs_cuda_top cannot be used)"])
CPPFLAGS=$ucfs_save_CPPFLAGS
LIBS=$ucfs_save_LIBS])

# Machine code of each architecture; of the last also what drivers of later
# devices compile.
AC_DEFUN([_UCFS_CUDA_FLAGS],
[NVCC_FLAGS="-std=c++17 -O3"
ucfs_last_arch=
for ucfs_arch in `echo "$with_cuda_arch" | sed 's/sm_//g; s/,/ /g'`; do
  AS_CASE([$ucfs_arch],
    [@<:@89@:>@@<:@0-9@:>@*|1@<:@0-9@:>@@<:@0-9@:>@*], [],
    [AC_MSG_ERROR([--with-cuda-arch: $ucfs_arch: kernels need compute capability 8.0 (80) or later])])
  NVCC_FLAGS="$NVCC_FLAGS -gencode arch=compute_$ucfs_arch,code=sm_$ucfs_arch"
  ucfs_last_arch=$ucfs_arch
done
NVCC_FLAGS="$NVCC_FLAGS -gencode arch=compute_$ucfs_last_arch,code=compute_$ucfs_last_arch"
NVCC_FLAGS="$NVCC_FLAGS -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics"
AS_IF([test "x$enable_werror" = xyes],
  [NVCC_FLAGS="$NVCC_FLAGS -Werror all-warnings -Xcompiler -Werror"])])
