# UCFS_MPI
# --with-mpi asks for MPI, through its compiler wrapper; without the option it
# is used when found.  Sets MPICC and have_mpi (text for the summary).
AC_DEFUN([UCFS_MPI],
[AC_ARG_WITH([mpi],
   [AS_HELP_STRING([--with-mpi],
      [let the trainer run on several ranks @<:@default=if mpicc is found@:>@])],
   [], [with_mpi=check])
AC_ARG_VAR([MPICC], [MPI compiler wrapper])

have_mpi=no
AS_IF([test "x$with_mpi" != xno],
  [AC_PATH_PROG([MPICC], [mpicc])
   AS_IF([test -n "$MPICC"], [have_mpi="$MPICC"],
     [test "x$with_mpi" != xcheck],
     [AC_MSG_ERROR([--with-mpi was given, but there is no mpicc])])])
AM_CONDITIONAL([HAVE_MPI], [test "x$have_mpi" != xno])])
