# For a gdb without Python (gdb.py): borrow the one thread that still stands where $probe_stack and
# $probe_code say, in a blocking system call, and have it start the boot library. Then let the job go.
define probe_boot
  if $sp == $probe_stack && $pc == $probe_code && $probe_called == 0
    set $probe_called = 1
    printf "probe: {\"how\": \"a parked thread\", \"phase\": \"calling\"}\n"
    set $probe_handle = ((long (*)(const char *, int)) $probe_dlopen)($probe_library, 2)
    if $probe_handle
      set $probe_start = ((long (*)(long, const char *)) $probe_dlsym)($probe_handle, "probe_spawn")
      set $probe_failed = ((int (*)(void)) $probe_start)()
      if $probe_failed
        printf "probe: {\"failed\": \"the job cannot start a thread (error %d)\"}\n", $probe_failed
      else
        printf "probe: {\"phase\": \"called\"}\n"
      end
    else
      printf "probe: {\"failed\": \"the job cannot load the library\", \"kind\": \"Unloadable\"}\n"
    end
  end
end
thread apply all -q -s probe_boot
if $probe_called == 0
  printf "probe: {\"failed\": \"the parked threads have resumed\", \"kind\": \"Refused\"}\n"
end
detach
printf "probe: {\"phase\": \"detached\"}\n"
