# UCFS_FUSE(MINIMUM-VERSION)
# libfuse 3, which the mount is built on, by the interface of its version
# 3.12.  FUSE_CFLAGS adds its include directory for everybody; that ckpt/
# stays free of it is tests/lint/layers.sh's business.
AC_DEFUN([UCFS_FUSE],
[UCFS_REQUIRE([FUSE], [fuse3 >= $1], [libfuse3-dev])
FUSE_CFLAGS="$FUSE_CFLAGS -DFUSE_USE_VERSION=312"])
