# Faults of the operating system, preloaded: a short run in `make check`, a long one
# by `make campaign`.
scripts += %D%/short.sh
check_DATA += %D%/faults.so %D%/unmount_race.so
%D%/faults.so: %D%/faults.c
	$(preload) -o $@ $< -ldl
%D%/unmount_race.so: %D%/unmount_race.c
	$(preload) -o $@ $< -ldl
CLEANFILES += %D%/faults.so %D%/unmount_race.so
EXTRA_DIST += %D%/faults.c %D%/unmount_race.c %D%/parts.sh %D%/campaign %D%/RESULTS.md
