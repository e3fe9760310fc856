# What ends a run early: signals, and a deadline for waiting.
# Uses ckpt/.
gpu_libuctrain_a_SOURCES += %D%/watch.h %D%/watch.c
