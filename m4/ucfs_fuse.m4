# UCFS_FUSE(MINIMUM-VERSION)
# libfuse 3, which the mount needs; --without-fuse builds the rest.  The
# interface is that of version 3.12 where libfuse has it: older ones cannot
# bound the number of threads.  FUSE_CFLAGS adds its include directory for
# everybody; that ckpt/ does not use it is tests/lint/layers.sh's business.
# Sets have_fuse (text for the summary).
AC_DEFUN([UCFS_FUSE],
[AC_ARG_WITH([fuse],
   [AS_HELP_STRING([--without-fuse],
      [build ucckpt and leave out the mount, ucfs])],
   [], [with_fuse=yes])
have_fuse=no
AS_IF([test "x$with_fuse" != xno],
  [UCFS_REQUIRE([FUSE], [fuse3], [$1], [libfuse3-dev])
   have_fuse=$version_FUSE
   AS_IF([$PKG_CONFIG --atleast-version=3.12 fuse3],
     [FUSE_CFLAGS="$FUSE_CFLAGS -DFUSE_USE_VERSION=312"],
     [FUSE_CFLAGS="$FUSE_CFLAGS -DFUSE_USE_VERSION=39"])])
AM_CONDITIONAL([BUILD_FUSE], [test "x$with_fuse" != xno])])
