# uckpt_info: a checkpoint described.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += %D%/info.c
