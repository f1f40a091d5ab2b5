# What every flag does to every operation: lines "flag kind operation: answer".
use strict; use warnings; use Fcntl; use POSIX ();
# Numbers of system calls: pwrite, fallocate, fsync, copy_file_range.
my ($pwrite, $fallocate, $fsync, $copy) = (POSIX::uname())[4] eq 'aarch64' ? (68, 47, 82, 285) : (18, 285, 74, 326);
my ($APPEND, $IMM) = (0x20, 0x10);
sub ioc { my ($path, $cmd, $arg) = @_; open(my $f, '<', $path) or return "open: $!"; my $r = ioctl($f, $cmd, $arg); return $r ? 'ok' : "$!" }
sub setf { my ($path, $flags) = @_; ioc($path, 0x40086602, pack('L2', $flags, 0)) }
sub getf { my $a = pack('L2', 0, 0); open(my $f, '<', $_[0]) or return 0; ioctl($f, 0x80086601, $a); (unpack 'L2', $a)[0] }
sub r { my ($label, $ok) = @_; print "$label: ", ($ok ? 'ok' : "$!"), "\n" }
my @opens = (['r', O_RDONLY], ['w', O_WRONLY], ['rw', O_RDWR], ['wa', O_WRONLY|O_APPEND], ['rwa', O_RDWR|O_APPEND], ['wt', O_WRONLY|O_TRUNC], ['wat', O_WRONLY|O_APPEND|O_TRUNC], ['rt', O_RDONLY|O_TRUNC], ['wc', O_WRONLY|O_CREAT], ['wac', O_WRONLY|O_CREAT|O_APPEND]);
sub fresh { system('chattr', '-R', '-ia', 't') if -e 't'; system('rm', '-rf', 't'); mkdir 't'; open(my $f, '>', 't/f'); syswrite($f, 'x' x 10000); close $f; mkdir 't/d'; mkdir 't/d/e'; open($f, '>', 't/d/g'); close $f; open($f, '>', 't/o'); syswrite($f, 'y' x 100); close $f; }
my %fops = (
  chmod => sub { chmod 0640, 't/f' }, chown => sub { chown 7, 7, 't/f' }, touch => sub { utime undef, undef, 't/f' },
  utime => sub { utime 5, 5, 't/f' }, truncate => sub { truncate 't/f', 5 }, grow => sub { truncate 't/f', 20000 }, link => sub { link 't/f', 't/l' },
  unlink => sub { unlink 't/f' }, rename => sub { rename 't/f', 't/n' }, over => sub { rename 't/o', 't/f' },
  touchm => sub { system('touch -m t/f 2>/dev/null') == 0 or (($! = 1), 0) }, toucha => sub { system('touch -a t/f 2>/dev/null') == 0 or (($! = 1), 0) },
  setx => sub { system('setfattr -n user.a -v b t/f 2>/dev/null') == 0 or (($! = 1), 0) }, acl => sub { system('setfacl -m u:5:r t/f 2>/dev/null') == 0 or (($! = 1), 0) },
);
my %held = (
  write => sub { syswrite($_[0], 'z') }, append => sub { sysseek($_[0], 0, 2); syswrite($_[0], 'z') }, ftruncate => sub { truncate $_[0], 3 }, fgrow => sub { truncate $_[0], 30000 },
  fchmod => sub { chmod 0600, $_[0] }, futouch => sub { utime undef, undef, $_[0] }, futime => sub { utime 5, 5, $_[0] },
  falloc => sub { syscall($fallocate, fileno($_[0]), 0, 0, 50000) == 0 }, keep => sub { syscall($fallocate, fileno($_[0]), 1, 0, 50000) == 0 },
  punch => sub { syscall($fallocate, fileno($_[0]), 3, 0, 4096) == 0 }, zero => sub { syscall($fallocate, fileno($_[0]), 16, 0, 4096) == 0 },
  fsync => sub { syscall($fsync, fileno($_[0])) == 0 },
  copyto => sub { open(my $o, '<', 't/o'); syscall($copy, fileno($o), 0, fileno($_[0]), 0, 50, 0) >= 0 },
);
for my $flag (0, $IMM, $APPEND, $IMM|$APPEND) {
  my $n = sprintf '%02x', $flag;
  for (@opens) { my ($on, $how) = @$_; fresh(); setf('t/f', getf('t/f') | $flag);
    if (sysopen(my $f, 't/f', $how)) { print "$n open $on: ok"; print ' write: ', (defined syswrite($f, 'q') ? 'ok' : "$!");
      print ' pwrite: ', (do { my $r = 'r'; syscall($pwrite, fileno($f), $r, 1, 2) } >= 0 ? 'ok' : "$!"), ' trunc: ', (truncate($f, 1) ? 'ok' : "$!"); my $ok = close $f; print " size ", -s 't/f', "\n" } else { print "$n open $on: $!\n" } }
  for my $op (sort keys %fops) { fresh(); setf('t/f', getf('t/f') | $flag); r("$n file $op", $fops{$op}->()) }
  for my $op (sort keys %held) { for my $how (O_RDWR, O_RDWR|O_APPEND) { fresh(); sysopen(my $f, 't/f', $how); setf('t/f', getf('t/f') | $flag); my $a = $how & O_APPEND ? 'a' : ''; r("$n held$a $op", $held{$op}->($f)); print "   size ", -s 't/f', "\n" } }
  my %dops = (creat => sub { sysopen(my $f, 't/d/h', O_WRONLY|O_CREAT) }, mkdir => sub { mkdir 't/d/h' }, unlink => sub { unlink 't/d/g' }, rmdir => sub { rmdir 't/d/e' }, rmself => sub { unlink 't/d/g'; rmdir 't/d/e'; rmdir 't/d' },
   link => sub { link 't/f', 't/d/h' }, symlink => sub { symlink 'x', 't/d/h' }, mknod => sub { system('mkfifo t/d/p 2>/dev/null') == 0 or (($! = 1), 0) }, in => sub { rename 't/f', 't/d/h' }, out => sub { rename 't/d/g', 't/h' }, within => sub { rename 't/d/g', 't/d/h' },
   over => sub { rename 't/o', 't/d/g' }, move => sub { rename 't/d', 't/dd' }, chmod => sub { chmod 0700, 't/d' }, touch => sub { utime undef, undef, 't/d' }, utime => sub { utime 5, 5, 't/d' }, openc => sub { sysopen(my $f, 't/d/g', O_WRONLY|O_CREAT) }, inner => sub { my $f; open($f, ">>", "t/d/g") && syswrite($f, "x") });
  for my $op (sort keys %dops) { fresh(); setf('t/d', getf('t/d') | $flag); r("$n dir $op", $dops{$op}->()) }
}
fresh(); system('rm -rf t');
