# Prints the errno of each operation on a file and the file's mode after it, for each first mode and each user.
# The users are root, the owner, a member of the file's group (supplementary or primary) and a user outside it.
# Root with CAP_FSETID and root without it are not distinguished.
use strict; use warnings; use Fcntl; use POSIX ();
my %users = (root => [0, '0 0'], owner => [1000, '1000 1000'], member => [1001, '1001 1001 2000'], first => [1002, '2000 2000'], stranger => [1003, '1003 1003']);
my ($fallocate, $copy) = (POSIX::uname())[4] eq 'aarch64' ? (47, 285) : (285, 326);
sub o { sysopen(my $f, $_[0], $_[1]) or return undef; $f }
my ($f, $o);
my %ops = (
  write => sub { ($f = o('f', O_WRONLY)) && syswrite($f, 'x') },
  append => sub { ($f = o('f', O_WRONLY | O_APPEND)) && syswrite($f, 'x') },
  truncate => sub { truncate 'f', 5 },
  same => sub { truncate 'f', 20000 },
  ftruncate => sub { ($f = o('f', O_WRONLY)) && truncate $f, 30000 },
  trunc => sub { ($f = o('f', O_WRONLY | O_TRUNC)) },
  fallocate => sub { ($f = o('f', O_WRONLY)) && syscall($fallocate, fileno($f), 0, 0, 50000) == 0 },
  keep => sub { ($f = o('f', O_WRONLY)) && syscall($fallocate, fileno($f), 1, 0, 50000) == 0 },
  punch => sub { ($f = o('f', O_WRONLY)) && syscall($fallocate, fileno($f), 3, 0, 4096) == 0 },
  zero => sub { ($f = o('f', O_WRONLY)) && syscall($fallocate, fileno($f), 16, 0, 4096) == 0 },
  copy => sub { ($o = o('o', O_RDONLY)) && ($f = o('f', O_WRONLY)) && syscall($copy, fileno($o), 0, fileno($f), 0, 50, 0) >= 0 },
  nothing => sub { ($f = o('f', O_WRONLY)) },
  read => sub { ($f = o('f', O_RDONLY)) && sysread($f, my $b, 5) },
  chown => sub { chown 1000, -1, 'f' },
  chgrp => sub { chown -1, (split ' ', $))[-1], 'f' },
  chmod => sub { chmod 06755, 'f' },
  touch => sub { utime undef, undef, 'f' },
  utime => sub { utime 5, 5, 'f' },
  link => sub { link 'f', 'l' },
  rename => sub { rename 'f', 'l' and rename 'l', 'f' },
);
$| = 1;
mkdir 't'; chmod 0777, '.', 't'; chdir 't';
for my $mode (04755, 04644, 02755, 02644, 06777, 06666, 02666, 02676, 01777, 0666) { for my $user (sort keys %users) { for my $op (sort keys %ops) {
  my ($uid, $groups) = @{$users{$user}};
  unlink 'f', 'l', 'o';
  open($f, '>', 'f') or die; syswrite($f, 'x' x 20000); close $f; open($f, '>', 'o'); syswrite($f, 'y' x 100); close $f; undef $f;
  chown 1000, 2000, 'f'; chmod $mode, 'f'; chmod 0666, 'o';
  my $child = fork;
  if (!$child) { $) = $groups; $> = $uid; exit($ops{$op}->() ? 0 : ($! + 0) || 255) }
  waitpid $child, 0; my $errno = $? >> 8;
  printf "%o %s %s: %d, %o\n", $mode, $user, $op, $errno, (stat 'f')[2] & 07777;
} } }
# A directory keeps its bits.
for my $user (sort keys %users) { my ($uid, $groups) = @{$users{$user}}; mkdir 'd'; chown 1000, 2000, 'd'; chmod 06777, 'd';
  my $child = fork; if (!$child) { $) = $groups; $> = $uid; open(my $f, '>', 'd/x'); chown -1, (split ' ', $))[-1], 'd'; mkdir 'd/e'; exit 0 } waitpid $child, 0;
  printf "directory %s: %o, %o %o\n", $user, (stat 'd')[2] & 07777, (stat 'd/x')[2] & 07777, (stat 'd/e')[2] & 07777; system('rm -rf d') }
