# What the reports about a checkpoint share.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += %D%/report.h %D%/report.c
