# UCFS_TRAIN
# What uctrain needs: MPI for its ranks, oneDNN for its products, OpenMP.  It
# is built when all are there; --with-train makes their absence an error.
# Sets have_train (text for the summary).
AC_DEFUN([UCFS_TRAIN],
[AC_ARG_WITH([train],
   [AS_HELP_STRING([--without-train],
      [leave out the trainer, uctrain, and with it MPI and oneDNN
       @<:@default=build it if they are found@:>@])],
   [], [with_train=check])

have_train=no
AS_IF([test "x$with_train" != xno],
  [ucfs_optional_missing=
   UCFS_OPTIONAL([MPI], [ompi-c], [4.0], [libopenmpi-dev])
   # Debian's has no pkg-config file.
   have_DNNL=no
   AC_CHECK_HEADER([oneapi/dnnl/dnnl.h],
     [AC_CHECK_LIB([dnnl], [dnnl_sgemm], [have_DNNL=yes])])
   AS_IF([test "x$have_DNNL" = xyes],
     [AC_SUBST([DNNL_LIBS], [-ldnnl])],
     [ucfs_optional_missing="${ucfs_optional_missing:+$ucfs_optional_missing, }libdnnl-dev (oneDNN >= 2.0)"])
   AC_OPENMP
   AS_IF([test "x$ac_cv_prog_c_openmp" = xunsupported],
     [ucfs_optional_missing="${ucfs_optional_missing:+$ucfs_optional_missing, }OpenMP for $CC (clang: libomp-dev of its version)"])
   AS_IF([test -z "$ucfs_optional_missing"],
     [have_train="Open MPI $version_MPI, oneDNN"],
     [test "x$with_train" != xcheck],
     [AC_MSG_ERROR([--with-train was given; it needs $ucfs_optional_missing])],
     [have_train="no (missing $ucfs_optional_missing)"])])
AS_CASE([$have_train], [no*], [ucfs_build_train=no], [ucfs_build_train=yes])
AM_CONDITIONAL([BUILD_TRAIN], [test "x$ucfs_build_train" = xyes])])

# UCFS_VECTOR_FLAGS
# VECTOR_CFLAGS: what lets loops of arithmetic become vectors from -O2 on.  An
# -O3 of ours would not last, CFLAGS comes after it.
AC_DEFUN([UCFS_VECTOR_FLAGS],
[VECTOR_CFLAGS=
for ucfs_flag in -fno-math-errno -fno-trapping-math -ftree-vectorize \
                 -fvect-cost-model=dynamic; do
  AC_MSG_CHECKING([whether $CC accepts $ucfs_flag])
  ucfs_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror $ucfs_flag"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
    [AC_MSG_RESULT([yes])
     VECTOR_CFLAGS="$VECTOR_CFLAGS $ucfs_flag"],
    [AC_MSG_RESULT([no])])
  CFLAGS=$ucfs_save_CFLAGS
done
# clang says so of each loop that "omp simd" names and that it cannot turn into
# vectors; gcc does not know the warning.
AC_MSG_CHECKING([whether $CC warns of loops without vectors])
ucfs_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -Werror -Wpass-failed"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
  [AC_MSG_RESULT([yes])
   VECTOR_CFLAGS="$VECTOR_CFLAGS -Wno-pass-failed"],
  [AC_MSG_RESULT([no])])
CFLAGS=$ucfs_save_CFLAGS
AC_SUBST([VECTOR_CFLAGS])])
