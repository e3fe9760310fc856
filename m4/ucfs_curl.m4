# UCFS_CURL(VERSION)
# What http, https and s3 sources need: libcurl.  --with-curl makes its absence an
# error.  Sets have_curl (text for the summary).
AC_DEFUN([UCFS_CURL],
[AC_ARG_WITH([curl],
   [AS_HELP_STRING([--without-curl],
      [leave out http, https and s3 sources, and with them libcurl
       @<:@default=take it if it is found@:>@])],
   [], [with_curl=check])

have_curl=no
AS_IF([test "x$with_curl" != xno],
  [ucfs_optional_missing=
   UCFS_OPTIONAL([CURL], [libcurl], [$1], [libcurl4-openssl-dev])
   AS_IF([test "x$have_CURL" = xyes],
     [have_curl="libcurl $version_CURL"],
     [test "x$with_curl" != xcheck],
     [AC_MSG_ERROR([--with-curl was given; it needs $ucfs_optional_missing])],
     [have_curl="no (missing $ucfs_optional_missing)"])])
AM_CONDITIONAL([HAVE_CURL], [test "x$have_CURL" = xyes])])
