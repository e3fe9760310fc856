# Libraries found by pkg-config.  All of them are looked for before the first
# complaint, so that one run of configure tells everything that is missing.

# UCFS_REQUIRE(VARIABLE, PKG-CONFIG-MODULE, DEBIAN-PACKAGE)
# Sets VARIABLE_CFLAGS, VARIABLE_LIBS and version_VARIABLE.
AC_DEFUN([UCFS_REQUIRE],
[PKG_CHECK_MODULES([$1], [$2],
   [_UCFS_VERSION([$1], [$2])],
   [ucfs_missing="$ucfs_missing $3"])])

# UCFS_OPTIONAL(VARIABLE, PKG-CONFIG-MODULE, DEBIAN-PACKAGE)
# The same, and have_VARIABLE tells whether it is there.
AC_DEFUN([UCFS_OPTIONAL],
[PKG_CHECK_MODULES([$1], [$2],
   [have_$1=yes
    _UCFS_VERSION([$1], [$2])],
   [have_$1=no
    ucfs_optional_missing="$ucfs_optional_missing $3"])])

# UCFS_REQUIRE_DONE
# Stops with the list of what UCFS_REQUIRE did not find.
AC_DEFUN([UCFS_REQUIRE_DONE],
[AS_IF([test -n "$ucfs_missing"],
   [AC_MSG_ERROR([required libraries are missing or too old
On Debian or Ubuntu: apt-get install$ucfs_missing])])])

# "libfoo >= 1.2" -> the version of libfoo.
AC_DEFUN([_UCFS_VERSION],
[version_$1=`$PKG_CONFIG --modversion m4_bpatsubst([$2], [ .*], [])`])
