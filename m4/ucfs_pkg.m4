# Libraries found by pkg-config.  All of them are looked for before the first
# complaint, so that one run of configure names everything that is missing.

# UCFS_REQUIRE(VARIABLE, PKG-CONFIG-MODULE, VERSION, DEBIAN-PACKAGE)
# Sets VARIABLE_CFLAGS, VARIABLE_LIBS and version_VARIABLE.
AC_DEFUN([UCFS_REQUIRE],
[PKG_CHECK_MODULES([$1], [$2 >= $3],
   [version_$1=`$PKG_CONFIG --modversion $2 2>/dev/null`],
   [_UCFS_FOUND([$2])
    ucfs_missing="$ucfs_missing
  $2: version $3 or later is needed, $ucfs_found"
    ucfs_missing_packages="$ucfs_missing_packages $4"])])

# UCFS_REQUIRE_CJSON(VERSION)
# UCFS_REQUIRE of libcjson.  Debian's and Ubuntu's of before 2021 has no
# pkg-config file, so without one it is looked for where they have it.
AC_DEFUN([UCFS_REQUIRE_CJSON],
[AS_IF([test -z "$CJSON_LIBS" && ! $PKG_CONFIG --exists libcjson],
  [ucfs_save_CPPFLAGS=$CPPFLAGS
   CPPFLAGS="$CPPFLAGS -I/usr/include/cjson"
   AC_CHECK_HEADER([cJSON.h],
     [AC_CHECK_LIB([cjson], [cJSON_Version],
        [CJSON_CFLAGS=-I/usr/include/cjson
         CJSON_LIBS=-lcjson])])
   CPPFLAGS=$ucfs_save_CPPFLAGS])
UCFS_REQUIRE([CJSON], [libcjson], [$1], [libcjson-dev])
version_CJSON=${version_CJSON:-found}])

# UCFS_OPTIONAL(VARIABLE, PKG-CONFIG-MODULE, VERSION, DEBIAN-PACKAGE)
# The same, but sets have_VARIABLE to yes or no.  Adds to
# ucfs_optional_missing, which the caller clears.
AC_DEFUN([UCFS_OPTIONAL],
[PKG_CHECK_MODULES([$1], [$2 >= $3],
   [have_$1=yes
    version_$1=`$PKG_CONFIG --modversion $2`],
   [have_$1=no
    _UCFS_FOUND([$2])
    ucfs_optional_missing="${ucfs_optional_missing:+$ucfs_optional_missing, }$4 ($2 >= $3, $ucfs_found)"])])

# UCFS_REQUIRE_DONE
# Stops with the list of what UCFS_REQUIRE did not find.
AC_DEFUN([UCFS_REQUIRE_DONE],
[AS_IF([test -n "$ucfs_missing"],
   [AC_MSG_ERROR([required libraries are missing or too old:$ucfs_missing
On Debian or Ubuntu: apt-get install$ucfs_missing_packages])])])

# Sets ucfs_found to the version of MODULE that is installed, in words.
AC_DEFUN([_UCFS_FOUND],
[ucfs_found=`$PKG_CONFIG --modversion $1 2>/dev/null`
ucfs_found=${ucfs_found:+"found $ucfs_found"}
ucfs_found=${ucfs_found:-none found}])
